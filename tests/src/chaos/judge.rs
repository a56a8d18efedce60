//! The rules that every call must obey.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::caller::{End, Outcome, is_safe};
use super::stage::Unwell;
use super::{CALL, CLIENT_HANGS_MAX};

/// Attempts of one call that may have been started: the first and two repeats.
const BEGUN_MAX: usize = 3;

/// A call may take so much longer than its time: a client that was stopped, and a busy machine.
const LATE_MS: u64 = CLIENT_HANGS_MAX.as_millis() as u64 + 2000;

/// Of each kind of violation no more are told.
const TOLD_MAX: usize = 5;

/// How often each call was begun, anywhere, by number.
pub(super) type Begun = BTreeMap<u64, usize>;

pub(super) fn read_outcomes(path: &Path) -> Vec<Outcome> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    BufReader::new(file)
        .lines()
        .map_while(Result::ok)
        .map(|line| serde_json::from_str(&line).expect("a client wrote it"))
        .collect()
}

pub(super) fn read_ledgers(paths: impl Iterator<Item = PathBuf>) -> Begun {
    let mut begun = Begun::new();
    for file in paths.filter_map(|path| File::open(path).ok()) {
        for number in BufReader::new(file).lines().map_while(Result::ok) {
            *begun.entry(number.parse().expect("a server wrote it")).or_default() += 1;
        }
    }
    begun
}

/// The violations, and what happened in numbers. `servers` are the addresses that `unwell` counts.
pub(super) fn judge(
    outcomes: &[Outcome],
    begun: &Begun,
    servers: &[SocketAddr],
    unwell: &[Unwell],
) -> (Vec<String>, String) {
    let mut broken: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut counts = [0usize; 4];
    for outcome in outcomes {
        let times = begun.get(&outcome.number).copied().unwrap_or(0);
        counts[match &outcome.end {
            End::Ok => 0,
            End::Failed { .. } => 1,
            End::Dropped => 2,
            End::Wrong(_) => 3,
        }] += 1;
        for rule in rules_broken(outcome, times, servers, unwell) {
            broken.entry(rule).or_default().push(format!("{outcome:?}, begun {times} times"));
        }
    }
    if outcomes.is_empty() {
        broken.entry("there are calls").or_default().push("none".into());
    }
    let mut violations = Vec::new();
    for (rule, all) in broken {
        let told = all.iter().take(TOLD_MAX).map(String::as_str).collect::<Vec<_>>().join("\n    ");
        violations.push(format!("{rule}: {} calls, such as\n    {told}", all.len()));
    }
    let [ok, failed, dropped, _] = counts;
    let repeated = begun.values().filter(|&&times| times > 1).count();
    let summary = format!(
        "{} calls: {ok} answered, {failed} failed where they may, {dropped} dropped by their callers; {repeated} repeated",
        outcomes.len()
    );
    (violations, summary)
}

fn rules_broken(outcome: &Outcome, times: usize, servers: &[SocketAddr], unwell: &[Unwell]) -> Vec<&'static str> {
    let safe = is_safe(outcome.number);
    let mut broken = Vec::new();
    let mut rule = |holds: bool, what| {
        if !holds {
            broken.push(what);
        }
    };
    rule(safe || times <= 1, "a call that must not run twice is begun at most once");
    rule(times <= BEGUN_MAX, "a call is repeated at most twice");
    let late = outcome.ended_ms.saturating_sub(outcome.began_ms) > CALL.as_millis() as u64 + LATE_MS;
    rule(!late, "a call ends in its time");
    match &outcome.end {
        End::Ok => rule(times > 0, "what is answered was begun"),
        End::Dropped => {}
        End::Wrong(_) => rule(false, "a reply belongs to its call"),
        End::Failed { .. } if safe => rule(false, "an idempotent call succeeds"),
        End::Failed { unsent: true, .. } => {
            rule(times == 0, "what is said to be unsent was not begun");
            rule(false, "a call that was not started goes to another node");
        }
        End::Failed { unsent: false, node, .. } => {
            let excused = unwell.iter().any(|time| {
                node.is_some_and(|node| servers[time.server] == node)
                    && time.from_ms <= outcome.ended_ms
                    && outcome.began_ms <= time.to_ms
            });
            rule(excused, "a call fails only at a server that was killed, hung or cut off");
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "127.0.0.1:1";

    fn broken(number: u64, end: End, times: usize) -> Vec<&'static str> {
        let outcome = Outcome { number, began_ms: 1000, ended_ms: 1500, end };
        let unwell = [Unwell { server: 0, from_ms: 1400, to_ms: 1600 }];
        rules_broken(&outcome, times, &[SERVER.parse().unwrap(), "127.0.0.1:2".parse().unwrap()], &unwell)
    }

    fn failed(unsent: bool, node: &str) -> End {
        End::Failed { unsent, node: Some(node.parse().unwrap()), text: String::new() }
    }

    #[test]
    fn each_rule_can_be_broken_and_kept() {
        assert!(broken(2, End::Ok, 1).is_empty() && broken(2, End::Ok, 3).is_empty());
        assert!(broken(1, failed(false, SERVER), 1).is_empty(), "it was at a server that was killed");
        assert_eq!(broken(1, failed(false, "127.0.0.1:2"), 1).len(), 1);
        assert_eq!(broken(2, failed(false, SERVER), 1), ["an idempotent call succeeds"]);
        assert_eq!(broken(1, failed(true, SERVER), 0).len(), 1);
        assert_eq!(broken(1, failed(true, SERVER), 1).len(), 2);
        assert_eq!(broken(1, End::Ok, 2).len(), 1);
        assert_eq!(broken(2, End::Ok, 4).len(), 1);
        assert_eq!(broken(2, End::Ok, 0).len(), 1);
        assert_eq!(broken(2, End::Wrong(String::new()), 1).len(), 1);
        let late = Outcome { number: 2, began_ms: 0, ended_ms: 20_000, end: End::Ok };
        assert_eq!(rules_broken(&late, 1, &[], &[]), ["a call ends in its time"]);
    }
}
