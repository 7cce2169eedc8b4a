//! Prints the results as a table.

use crate::work::Measured;

/// Two consecutive measurements, one of each system.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) bowline: Measured,
    pub(crate) etcd: Measured,
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
        let of = |system: fn(&Pair) -> &Measured| {
            let figure = |figure: fn(&Measured) -> f64| {
                spread(self.0.iter().map(|pair| figure(system(pair))).collect()).1
            };
            let (rate, median) = (figure(|of| of.rate), figure(|of| of.median));
            let (p99, cpu) = (figure(|of| of.p99), figure(|of| of.cpu));
            format!("{rate:.0} | {median:.0} | {p99:.0} | {cpu:.1}")
        };
        let ratio = |figure: fn(&Measured) -> f64| {
            let ratios = self.0.iter().map(|pair| figure(&pair.bowline) / figure(&pair.etcd));
            let (least, median, most) = spread(ratios.collect());
            format!("{median:.2} ({least:.2} to {most:.2})")
        };
        println!(
            "| {name} | {} | {} | {} | {} |",
            of(|pair| &pair.etcd),
            of(|pair| &pair.bowline),
            ratio(|of| of.rate),
            ratio(|of| of.median),
        );
    }
}

/// Returns the minimum, the median and the maximum.
fn spread(mut numbers: Vec<f64>) -> (f64, f64, f64) {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len() - 1;
    (numbers[0], numbers[last / 2], numbers[last])
}
