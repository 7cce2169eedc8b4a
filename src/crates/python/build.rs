//! Sets the linker arguments that macOS needs for an extension module that does not link libpython.

fn main() {
    // Do not run this script again when only a Python file of the package has changed.
    println!("cargo:rerun-if-changed=build.rs");
    pyo3_build_config::add_extension_module_link_args();
}
