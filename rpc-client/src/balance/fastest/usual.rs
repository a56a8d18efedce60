//! What methods usually take.

/// Weight of a report in a mean, once there are enough.
const GAIN: f64 = 0.02;

/// Methods that are told apart. Of any other a node is taken to be as slow as it says.
const METHODS_MAX: usize = 64;

/// Mean idle times over all nodes, by method. A node is as slow as it is compared with the others
/// at the same method: one that happens to get the long calls is not slow.
#[derive(Clone, Debug, Default)]
pub(super) struct Usual {
    methods: Vec<(u32, Mean)>,
    /// Of the response times in the registry.
    published: Mean,
}

/// Which of the methods, if it is one of those told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method(Option<usize>);

/// What is known of how long calls take at one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// What a method takes when it is idle, in microseconds, by its own account.
    pub(super) service: Option<(Method, f64)>,
    /// Its response time in the registry, in microseconds; 0 is unknown.
    pub(super) published_us: f64,
}

impl Usual {
    fn find(&self, method: u32) -> Method {
        Method(self.methods.iter().position(|(known, _)| *known == method))
    }

    /// A node reported what the method takes there.
    pub(super) fn learn(&mut self, method: u32, service_us: f64) -> Method {
        let mut found = self.find(method);
        if found.0.is_none() && self.methods.len() < METHODS_MAX {
            found = Method(Some(self.methods.len()));
            self.methods.push((method, Mean::default()));
        }
        if let Some(place) = found.0 {
            self.methods[place].1.add(service_us);
        }
        found
    }

    /// The registry has this response time of a node.
    pub(super) fn learn_published(&mut self, us: f64) {
        self.published.add(us);
    }

    /// What the method takes on the usual node when it is idle, in microseconds.
    pub(super) fn us(&self, method: u32) -> Option<f64> {
        self.find(method).0.map(|place| self.methods[place].1.us)
    }

    /// How many times as long calls take on a node as on the usual one: by what it answered last,
    /// or, if that is nothing, by what others measured there.
    pub(super) fn ratio(&self, known: Known) -> f64 {
        match known {
            Known { service: Some((Method(Some(place)), us)), .. } => us / self.methods[place].1.us,
            Known { service: None, published_us } if published_us > 0.0 => published_us / self.published.us,
            Known { .. } => 1.0,
        }
    }

    /// What a call takes there, of a method that no node has answered yet.
    pub(super) fn any_us(&self, known: Known) -> f64 {
        let published_us = (known.published_us > 0.0).then_some(known.published_us);
        let usual_us = self.methods.first().map(|(_, mean)| mean.us);
        known.service.map(|(_, us)| us).or(usual_us).or(published_us).unwrap_or(1.0)
    }
}

/// A geometric mean of microseconds, in which old values fade.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    ln: f64,
    us: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, us: f64) {
        self.count = (self.count + 1.0).min(1.0 / GAIN);
        self.ln += (us.ln() - self.ln) / self.count;
        self.us = self.ln.exp();
    }
}
