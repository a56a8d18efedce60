//! How much work a request is.

use rpc_client::balance::Random;
use serde::Deserialize;

/// Distribution of the work of one request, in milliseconds on a core of speed 1.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Always the same.
    Constant {
        /// The work.
        ms: f64,
    },
    /// Normal, drawn again while it is not positive: its mean is above `mean_ms` if the deviation
    /// is large (1.2876 times it for a deviation as large as the mean).
    Normal {
        /// Mean before the cut.
        mean_ms: f64,
        /// Standard deviation before the cut.
        deviation_ms: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean_ms: f64,
    },
    /// Lognormal: a few requests are very long.
    Lognormal {
        /// Mean.
        mean_ms: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Requests of several methods.
    Mix {
        /// The methods.
        of: Vec<Method>,
    },
}

/// One method of a [`Work::Mix`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// Its share of the requests.
    pub share: f64,
    /// Its work.
    pub work: Work,
    /// Its requests go to this server (an index over all groups), as if they had a key that
    /// belongs there. They are not counted in the results.
    pub server: Option<usize>,
}

impl Work {
    /// Draws a request: the place of its method in a mix (0 if there is none), and its work in
    /// milliseconds.
    pub fn draw_request(&self, random: &mut Random) -> (usize, f64) {
        let Self::Mix { of } = self else { return (0, self.draw(random)) };
        let mut left = random.unit() * of.iter().map(|m| m.share).sum::<f64>();
        let drawn = of.iter().position(|method| {
            left -= method.share;
            left < 0.0
        });
        let method = drawn.unwrap_or(of.len().saturating_sub(1));
        (method, of.get(method).map_or(0.0, |m| m.work.draw(random)))
    }

    /// The server that requests of this method go to, whatever the policy says.
    pub fn server(&self, method: usize) -> Option<usize> {
        let Self::Mix { of } = self else { return None };
        of.get(method)?.server
    }

    fn draw(&self, random: &mut Random) -> f64 {
        match self {
            Self::Constant { ms } => *ms,
            Self::Normal { mean_ms, deviation_ms } => loop {
                let ms = mean_ms + deviation_ms * normal(random);
                if ms > 0.0 {
                    return ms;
                }
            },
            Self::Exponential { mean_ms } => mean_ms * exponential(random),
            Self::Lognormal { mean_ms, sigma } => mean_ms * (sigma * normal(random) - 0.5 * sigma * sigma).exp(),
            Self::Mix { .. } => self.draw_request(random).1,
        }
    }

    /// The mean, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        match self {
            Self::Constant { ms } => *ms,
            Self::Normal { mean_ms, deviation_ms } if *deviation_ms > 0.0 => {
                let cut = -mean_ms / deviation_ms;
                let density = (-0.5 * cut * cut).exp() / (2.0 * std::f64::consts::PI).sqrt();
                mean_ms + deviation_ms * density / (1.0 - normal_share_below(cut))
            }
            Self::Normal { mean_ms, .. } | Self::Exponential { mean_ms } | Self::Lognormal { mean_ms, .. } => *mean_ms,
            Self::Mix { of } => {
                let shares: f64 = of.iter().map(|m| m.share).sum();
                of.iter().map(|m| m.share * m.work.mean_ms()).sum::<f64>() / shares
            }
        }
    }
}

/// A draw from the exponential distribution with mean 1.
pub fn exponential(random: &mut Random) -> f64 {
    -(1.0 - random.unit()).ln()
}

/// A draw from the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut Random) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

/// The standard normal distribution function, by Simpson's rule from -8.
fn normal_share_below(x: f64) -> f64 {
    const STEPS: usize = 400;
    let (from, to) = (-8.0, x.clamp(-8.0, 8.0));
    let step = (to - from) / STEPS as f64;
    let density = |at: f64| (-0.5 * at * at).exp();
    let inner: f64 = (1..STEPS).map(|i| density(from + step * i as f64) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (density(from) + inner + density(to)) * step / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_stated_mean() {
        let mix = Work::Mix {
            of: vec![
                Method { share: 19.0, work: Work::Constant { ms: 5.0 }, server: None },
                Method { share: 1.0, work: Work::Constant { ms: 200.0 }, server: None },
            ],
        };
        assert!((mix.mean_ms() - 14.75).abs() < 1e-9);
        let all = [
            mix,
            Work::Normal { mean_ms: 20.0, deviation_ms: 20.0 },
            Work::Exponential { mean_ms: 20.0 },
            Work::Lognormal { mean_ms: 20.0, sigma: 1.0 },
        ];
        for work in all {
            let mut random = Random::new(7);
            let mean = (0..200_000).map(|_| work.draw(&mut random)).sum::<f64>() / 200_000.0;
            assert!((mean / work.mean_ms() - 1.0).abs() < 0.02, "{work:?}: {mean}");
        }
        let cut = Work::Normal { mean_ms: 20.0, deviation_ms: 20.0 }.mean_ms();
        assert!((cut - 25.752).abs() < 0.01, "{cut}");
    }
}
