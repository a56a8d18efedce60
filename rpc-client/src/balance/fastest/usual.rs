//! What methods usually take.

/// Weight of a report in its method's mean.
const GAIN: f64 = 0.02;

/// Methods that are told apart. Of any other a node is taken to be as slow as it says.
const METHODS_MAX: usize = 64;

/// Mean idle times over all nodes, by method, as logarithms of microseconds. A node is as slow as
/// it is compared with the others at the same method: one that happens to get the long calls is
/// not slow.
#[derive(Clone, Debug, Default)]
pub(super) struct Usual {
    methods: Vec<(u32, f64)>,
}

/// Which of the methods a report was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method(usize);

impl Usual {
    /// A node reported what the method takes there.
    pub(super) fn learn(&mut self, method: u32, service_us: f64) -> Method {
        let ln = service_us.ln();
        if let Some(place) = self.place(method) {
            let mean = &mut self.methods[place].1;
            *mean += GAIN * (ln - *mean);
            return Method(place);
        }
        if self.methods.len() < METHODS_MAX {
            self.methods.push((method, ln));
        }
        Method(self.place(method).unwrap_or(METHODS_MAX))
    }

    /// What the method takes on a node that is not known, if anything is known.
    pub(super) fn of(&self, method: u32) -> Option<f64> {
        let place = self.place(method).unwrap_or(0);
        self.methods.get(place).map(|(_, ln)| ln.exp())
    }

    /// What `method` takes on a node where another one, or the same, takes `service_us`.
    pub(super) fn convert(&self, method: u32, from: Method, service_us: f64) -> f64 {
        let Some((reported, ln_from)) = self.methods.get(from.0) else { return service_us };
        match self.place(method).map(|place| self.methods[place]) {
            Some((wanted, ln)) if wanted != *reported => service_us * (ln - ln_from).exp(),
            Some(_) | None => service_us,
        }
    }

    fn place(&self, method: u32) -> Option<usize> {
        self.methods.iter().position(|(known, _)| *known == method)
    }
}
