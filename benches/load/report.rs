//! The output of the rows, as a table or as lines of JSON.

use std::time::Duration;

use bowline_testkit::crew::{Form, Measured};

/// Prints the header.
pub(crate) fn begin(form: Form, title: &str) {
    if form == Form::Table {
        println!("{title}");
        println!("| work | operations/s | median us | p99 us | CPU us an operation | operations |");
        println!("|---|---|---|---|---|---|");
    }
}

/// Prints a row about the rate of operations.
pub(crate) fn rate(form: Form, name: &str, measured: &Measured, cpu: Duration) {
    let count = measured.count();
    let cpu = cpu.as_secs_f64() * 1e6 / count.max(1) as f64;
    let (rate, median, p99) = (measured.rate(), measured.micros(0.5), measured.micros(0.99));
    match form {
        Form::Table => {
            println!("| {name} | {rate:.0} | {median:.0} | {p99:.0} | {cpu:.1} | {count} |");
        }
        Form::Json => println!(
            "{{\"row\":\"{name}\",\"ops_per_s\":{rate:.1},\"p50_us\":{median:.1},\
             \"p99_us\":{p99:.1},\"cpu_us\":{cpu:.1},\"n\":{count}}}"
        ),
    }
}

/// Prints a row about the duration of an operation.
pub(crate) fn time(form: Form, name: &str, measured: &Measured) {
    let count = measured.count();
    let (median, p99) = (measured.micros(0.5), measured.micros(0.99));
    match form {
        Form::Table => println!("| {name} | - | {median:.0} | {p99:.0} | - | {count} |"),
        Form::Json => println!(
            "{{\"row\":\"{name}\",\"p50_us\":{median:.1},\"p99_us\":{p99:.1},\"n\":{count}}}"
        ),
    }
}
