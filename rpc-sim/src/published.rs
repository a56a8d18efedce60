//! The response times in the registry, as the clients' write-back keeps them.

use rpc_core::registry::RESPONSE_TIME_VALID;

use crate::clock::{MILLISECOND, Nanos, SECOND};

/// From a write until the clients see it.
const VISIBLE_AFTER: Nanos = 20 * MILLISECOND;

/// Least time between two writes of one entry, by anybody.
const INTERVAL: Nanos = SECOND;

/// An entry in use is written again at this age, even if its value did not change.
const REFRESH: Nanos = 2_500 * MILLISECOND;

/// Latest response times of which the median is written.
const SAMPLES: usize = 5;

/// The response times in the registry.
#[derive(Debug)]
pub struct Published {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    value_us: u64,
    before_us: u64,
    written_at: Option<Nanos>,
    samples: Vec<u64>,
}

impl Published {
    /// As it is at the start: microseconds for each server, or unknown.
    pub fn new(servers: impl Iterator<Item = Option<u64>>) -> Self {
        let entry = |us: Option<u64>| match us {
            Some(us) => Entry { value_us: us, before_us: us, written_at: Some(0), samples: Vec::new() },
            None => Entry::default(),
        };
        Self { entries: servers.map(entry).collect() }
    }

    /// What a client reads; 0 is unknown.
    pub fn read(&self, server: usize, now: Nanos) -> u64 {
        let entry = &self.entries[server];
        match entry.written_at.map(|at| now - at) {
            None => 0,
            Some(age) if age > RESPONSE_TIME_VALID.as_nanos() as Nanos => 0,
            Some(age) if age < VISIBLE_AFTER => entry.before_us,
            Some(_) => entry.value_us,
        }
    }

    /// A client got an answer, and writes if it is time.
    pub fn answered(&mut self, server: usize, now: Nanos, latency: Nanos) {
        let known_us = self.read(server, now);
        let entry = &mut self.entries[server];
        if entry.samples.len() == SAMPLES {
            entry.samples.remove(0);
        }
        entry.samples.push((latency / 1000).max(1));
        let age = entry.written_at.map_or(Nanos::MAX, |at| now - at);
        if age < INTERVAL {
            return;
        }
        let mut sorted = entry.samples.clone();
        sorted.sort_unstable();
        let median_us = sorted[sorted.len() / 2];
        if known_us == 0 || age >= REFRESH || median_us.abs_diff(known_us) * 10 > known_us {
            entry.before_us = known_us;
            entry.value_us = median_us;
            entry.written_at = Some(now);
            entry.samples.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_once_a_second_seen_a_little_later_and_expires() {
        let mut published = Published::new([None].into_iter());
        assert_eq!(published.read(0, 0), 0);
        published.answered(0, 0, 20 * MILLISECOND);
        assert_eq!(published.read(0, VISIBLE_AFTER - 1), 0);
        assert_eq!(published.read(0, VISIBLE_AFTER), 20_000);
        published.answered(0, SECOND / 2, 90 * MILLISECOND);
        assert_eq!(published.read(0, SECOND), 20_000);
        published.answered(0, SECOND, 80 * MILLISECOND);
        assert_eq!(published.read(0, SECOND + VISIBLE_AFTER), 90_000);
        assert_eq!(published.read(0, 7 * SECOND), 0, "nobody wrote it for 5 s");
        assert_eq!(Published::new([Some(7)].into_iter()).read(0, 0), 7, "what is known at the start is seen at once");
    }
}
