//! Calls that leave a node that hangs.

use std::time::Duration;

use tokio::time::Instant;

use crate::channel::{Answer, Exchange, ExchangeError};
use crate::client::Inner;
use crate::snapshot::Usable;

/// A node is not asked sooner, however fast it usually is: the machine may have been busy elsewhere.
const PATIENCE_MIN: Duration = Duration::from_millis(5);

/// Nor later: then its silence is noticed anyway.
const PATIENCE_MAX: Duration = Duration::from_millis(250);

impl Inner {
    /// Waits for the answer. When that takes longer than usual the node is asked for a sign of life,
    /// and again after twice the time and so on. If it gives none, the call is given up, at the
    /// expense of the budget for repeats. Hedging by time alone would repeat the longest calls, and add
    /// load where there is too much already.
    pub(crate) async fn hedged(
        &self,
        exchange: Exchange<'_>,
        usable: &Usable,
        method_hash: u32,
    ) -> Result<Answer, ExchangeError> {
        tokio::pin!(exchange);
        let usual = usable.node.usual_latency(Instant::now()).unwrap_or(PATIENCE_MAX);
        let mut patience = usual.clamp(PATIENCE_MIN, PATIENCE_MAX);
        loop {
            tokio::select! {
                biased;
                outcome = &mut exchange => return outcome,
                () = tokio::time::sleep(patience) => {}
            }
            let answered = tokio::select! {
                biased;
                outcome = &mut exchange => return outcome,
                answered = self.pool.ask(usable, method_hash) => answered,
            };
            // Dropping the exchange takes the call back.
            if answered == Some(false) && self.may_spend(Instant::now()) {
                return Err(ExchangeError::Hung);
            }
            patience = (patience * 2).min(PATIENCE_MAX);
        }
    }
}
