//! A limit that finds itself. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The first limit. Small, so that the first calls are timed without a queue; it grows by more than
/// half with each full window.
const LIMIT_FIRST: f64 = 4.0;

/// Neither less nor more. The upper bound only keeps the numbers finite.
const LIMIT_RANGE: (f64, f64) = (1.0, 1e5);

/// Calls by which a window is judged, and its shortest time.
const SAMPLES_MIN: u32 = 32;
const WINDOW_MIN: Duration = Duration::from_millis(100);

/// Times longer than unloaded by this share are taken for noise.
const TOLERANCE: f64 = 1.1;

/// The limit falls by at most this factor in one window.
const GRADIENT_MIN: f64 = 0.5;

/// Weight of a window without a queue in the unloaded time: an increase may be chance.
const RISE_GAIN: f64 = 0.05;
const FALL_GAIN: f64 = 0.3;

/// The unloaded time is measured anew when the limit has held calls back for so long since, or for
/// so many unloaded times.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_AFTER_CALLS: f64 = 100.0;

/// Share of the limit meanwhile, calls that settle it, and the patience in unloaded times.
const PROBE_SHARE: f64 = 0.25;
const PROBE_SAMPLES: u32 = 20;
const PROBE_PATIENCE: f64 = 50.0;

/// Finds the calls that a server can run at once from how their time grows with their number.
///
/// After each window in which the limit held calls back,
///
/// ```text
/// limit = limit x max(1/2, 1.1 x unloaded time / time in this window) + sqrt(limit)
/// ```
///
/// so it settles a little above the point from which calls only wait for each other. The times are
/// geometric means, which a few slow calls do not move. The unloaded time is a running mean over
/// windows in which at most half of the limit ran; under lasting load it is measured every 10 s by
/// a quarter of the limit for some 20 calls, as otherwise a queue would come to pass for normal.
///
/// Source: the gradient controller of Envoy's adaptive concurrency filter
/// (`source/extensions/filters/http/adaptive_concurrency`), after Netflix's concurrency-limits
/// (`Gradient2Limit`). Differences: Envoy measures the unloaded time at a limit of 3, also where
/// nothing is held back; its headroom is 25 %.
#[derive(Debug)]
pub(super) struct Gradient {
    limit: f64,
    /// Unloaded time, as the logarithm of seconds, and when it was last measured.
    unloaded: Option<(f64, Instant)>,
    window: Window,
    probe: Option<Probe>,
}

/// The calls that ended since.
#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    count: u32,
    ln_seconds: f64,
    /// Most calls that ran at once.
    most: usize,
    /// A call found no place.
    full: bool,
}

/// The unloaded time is being measured.
#[derive(Debug)]
struct Probe {
    since: Instant,
    until: Instant,
    count: u32,
    ln_seconds: f64,
}

impl Default for Gradient {
    fn default() -> Self {
        Self { limit: LIMIT_FIRST, unloaded: None, window: Window::default(), probe: None }
    }
}

impl Gradient {
    /// Calls that may run at `now`.
    pub(super) fn limit(&mut self, now: Instant) -> usize {
        if self.probe.as_ref().is_some_and(|probe| now >= probe.until) {
            self.end_probe(now);
        }
        let share = if self.probe.is_some() { PROBE_SHARE } else { 1.0 };
        ((self.limit * share) as usize).max(1)
    }

    /// A call began; `running` with it.
    pub(super) fn began(&mut self, running: usize) {
        self.window.most = self.window.most.max(running);
    }

    /// A call found all places taken.
    pub(super) fn found_full(&mut self) {
        self.window.full = true;
    }

    /// A call that ran since `began` ended. One that was given up took at least so long.
    pub(super) fn ended(&mut self, now: Instant, began: Instant, answered: bool) {
        let ln_seconds = now.saturating_duration_since(began).as_secs_f64().max(1e-6).ln();
        if !answered && self.unloaded.is_none_or(|(unloaded, _)| ln_seconds < unloaded) {
            return;
        }
        if let Some(probe) = &mut self.probe {
            // Those that began before may have had more company.
            if began >= probe.since {
                probe.count += 1;
                probe.ln_seconds += ln_seconds;
            }
            if probe.count >= PROBE_SAMPLES {
                self.end_probe(now);
            }
            return;
        }
        let since = *self.window.since.get_or_insert(now);
        self.window.count += 1;
        self.window.ln_seconds += ln_seconds;
        if self.window.count >= SAMPLES_MIN && now.saturating_duration_since(since) >= WINDOW_MIN {
            self.judge(now);
        }
    }

    /// A window is over.
    fn judge(&mut self, now: Instant) {
        let window = std::mem::take(&mut self.window);
        let mean = window.ln_seconds / f64::from(window.count);
        let Some((unloaded, measured)) = &mut self.unloaded else {
            self.unloaded = Some((mean, now));
            return self.grow(1.0);
        };
        let roomy = !window.full && window.most as f64 <= self.limit / 2.0;
        if mean < *unloaded || roomy {
            let gain = if mean < *unloaded { FALL_GAIN } else { RISE_GAIN };
            *unloaded += gain * (mean - *unloaded);
        }
        if roomy {
            *measured = now;
        }
        if !window.full {
            return;
        }
        let (unloaded, measured) = (*unloaded, *measured);
        self.grow((unloaded - mean).exp().min(1.0));
        let seconds = unloaded.exp();
        let patience = PROBE_AFTER.max(duration(PROBE_AFTER_CALLS * seconds));
        if now.saturating_duration_since(measured) >= patience {
            let until = now + duration(PROBE_PATIENCE * seconds);
            self.probe = Some(Probe { since: now, until, count: 0, ln_seconds: 0.0 });
        }
    }

    fn grow(&mut self, gradient: f64) {
        let limit = self.limit * (TOLERANCE * gradient).max(GRADIENT_MIN) + self.limit.sqrt();
        self.limit = limit.clamp(LIMIT_RANGE.0, LIMIT_RANGE.1);
    }

    fn end_probe(&mut self, now: Instant) {
        let Some(probe) = self.probe.take() else { return };
        let unloaded = match self.unloaded {
            _ if probe.count > 0 => probe.ln_seconds / f64::from(probe.count),
            Some((unloaded, _)) => unloaded,
            None => return,
        };
        self.unloaded = Some((unloaded, now));
        self.window = Window::default();
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 3600.0))
}
