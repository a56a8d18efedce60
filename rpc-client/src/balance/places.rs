//! Where in the view a node is.

use std::collections::HashMap;
use std::sync::Arc;

use super::{NodeId, View};

/// The index of every node, as of the last change of membership. Cheap to clone: policies are
/// copied for replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<HashMap<NodeId, usize>>);

impl Places {
    /// The membership changed: `nodes` are all of them, in the order of the view.
    pub(super) fn follow(&mut self, nodes: &[NodeId]) {
        self.0 = Arc::new(nodes.iter().enumerate().map(|(index, &id)| (id, index)).collect());
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the node is among them.
    pub(super) fn has(&self, id: NodeId) -> bool {
        self.0.contains_key(&id)
    }

    /// The node's index in the view. None if the node is not there, or the view is of another
    /// membership than the last one told.
    pub(super) fn find(&self, view: &dyn View, id: NodeId) -> Option<usize> {
        let index = *self.0.get(&id)?;
        (index < view.len() && view.id(index) == id).then_some(index)
    }
}
