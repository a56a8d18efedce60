//! C3's score (Suresh et al., NSDI 2015) from replies alone, without its rate control.

use rpc_client::balance::{Event, NodeId, Pick, Policy, View};

/// Weight of a new sample in every average (as in Elasticsearch's adaptive replica selection).
const GAIN: f64 = 0.3;

/// Calls the node with the lowest `R - S + (1 + outstanding * clients + queue)^3 * S`, where R is the
/// response time seen here, S the service time and queue the queue reported by the server, all
/// averaged. A node that never answered comes first. Looks at every node.
#[derive(Clone, Debug)]
pub struct Cubic {
    clients: f64,
    /// By the number of the node, which is small here.
    nodes: Vec<Option<Averages>>,
}

#[derive(Clone, Copy, Debug)]
struct Averages {
    response_us: f64,
    service_us: f64,
    queue: f64,
}

impl Cubic {
    /// For one of so many clients.
    pub fn new(clients: usize) -> Self {
        Self { clients: clients as f64, nodes: Vec::new() }
    }
}

impl Policy for Cubic {
    fn pick(&mut self, view: &dyn View, pick: &Pick<'_>) -> Option<usize> {
        let score = |index: usize| {
            let node = view.node(index);
            let known = self.nodes.get(place(node.id)).copied().flatten().map(|a| {
                let queue = 1.0 + f64::from(node.in_flight) * self.clients + a.queue;
                a.response_us - a.service_us + queue.powi(3) * a.service_us
            });
            // Outstanding calls keep one node from getting all while nothing has answered.
            (known.unwrap_or(f64::from(node.in_flight) - 1e18), pick.is_excluded(node.id))
        };
        let scored = (0..view.len()).map(|index| (index, score(index)));
        let open = scored.filter(|(_, (_, excluded))| !excluded);
        open.min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b)).map(|(index, _)| index)
    }

    fn observe(&mut self, event: &Event<'_>) {
        let Event::Reply { node, latency, ok: true, report: Some(report), .. } = event else { return };
        let sample = Averages {
            response_us: latency.as_secs_f64() * 1e6,
            service_us: report.service_us,
            queue: f64::from(report.in_flight),
        };
        let place = place(*node);
        if place >= self.nodes.len() {
            self.nodes.resize(place + 1, None);
        }
        let average = self.nodes[place].get_or_insert(sample);
        average.response_us += GAIN * (sample.response_us - average.response_us);
        average.service_us += GAIN * (sample.service_us - average.service_us);
        average.queue += GAIN * (sample.queue - average.queue);
    }

    fn observes(&self) -> bool {
        true
    }
}

fn place(node: NodeId) -> usize {
    node.0 as usize
}
