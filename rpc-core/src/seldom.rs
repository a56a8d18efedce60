//! Warnings that could come many times a second.

use std::time::Duration;

use tokio::time::Instant;

/// What goes on is told again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Has something told when it happens, and then how often it happened, at long intervals.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Option<Instant>,
    times: u64,
}

impl Seldom {
    /// It happened. How often it did since it was last told, if it is to be told now.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < AGAIN_AFTER) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_at_once_and_then_counted() {
        let start = Instant::now();
        let mut seldom = Seldom::default();
        let told: Vec<(u64, u64)> = (0..=65)
            .filter_map(|second| seldom.count(start + Duration::from_secs(second)).map(|times| (second, times)))
            .collect();
        assert_eq!(told, [(0, 1), (30, 30), (60, 30)]);
    }
}
