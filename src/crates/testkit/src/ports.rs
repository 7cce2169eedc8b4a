//! Free ports for tests.

/// Returns ports that stay free until a process listens on them.
///
/// # Panics
/// Panics if there are not enough.
pub fn reserved_ports(count: usize) -> Vec<u16> {
    bowline_fleet::ports::free_ports(count).expect("free ports")
}
