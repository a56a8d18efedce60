//! Policies for comparison only: published ideas that the client does not offer.

mod cubic;
mod pooled;
mod weighted_round_robin;

pub use cubic::Cubic;
pub use pooled::{pooled_cubic, pooled_linear};
pub use weighted_round_robin::WeightedRoundRobin;
