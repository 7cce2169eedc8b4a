//! Prints the results as a table.

use bowline_testkit::crew::{Sample, Spread};

/// Two consecutive measurements, one of each system.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) bowline: Sample,
    pub(crate) etcd: Sample,
}

/// All pairs of a row.
#[derive(Clone, Default)]
pub(crate) struct Row(Vec<Pair>);

/// Prints the head of a table.
pub(crate) fn head(nodes: usize) {
    println!("\n{nodes} server{}:\n", if nodes == 1 { "" } else { "s" });
    println!(
        "| work, clients | etcd/s | median us | p99 us | CPU us | Bowline/s | median us | p99 us | CPU us \
         | rate, Bowline to etcd | median, Bowline to etcd |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
}

impl Row {
    pub(crate) fn add(&mut self, pair: Pair) {
        self.0.push(pair);
    }

    pub(crate) fn print(&self, name: &str) {
        let of = |system: fn(&Pair) -> &Sample| {
            let figure = |figure: fn(&Sample) -> f64| {
                Spread::of(self.0.iter().map(|pair| figure(system(pair)))).median
            };
            let (rate, median) = (figure(|of| of.rate), figure(|of| of.median_us));
            let (p99, cpu) = (figure(|of| of.p99_us), figure(|of| of.cpu_us));
            format!("{rate:.0} | {median:.0} | {p99:.0} | {cpu:.1}")
        };
        let ratio = |figure: fn(&Sample) -> f64| {
            let ratios = self.0.iter().map(|pair| figure(&pair.bowline) / figure(&pair.etcd));
            let Spread { median, min, max } = Spread::of(ratios);
            format!("{median:.2} ({min:.2} to {max:.2})")
        };
        println!(
            "| {name} | {} | {} | {} | {} |",
            of(|pair| &pair.etcd),
            of(|pair| &pair.bowline),
            ratio(|of| of.rate),
            ratio(|of| of.median_us),
        );
    }
}
