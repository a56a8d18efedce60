//! Frames and envelopes (being written).
