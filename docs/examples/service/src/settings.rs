//! Configuration from environment variables.

use std::env;
use std::net::SocketAddr;

use bowline::{Config, ConfigError};

/// The settings of one process.
#[derive(Debug)]
pub struct Settings {
    /// Configuration of the node.
    pub node: Config,
    /// Address on which the service listens for HTTP.
    pub http_address: SocketAddr,
    /// URL at which clients reach this process. Other processes refer their clients to it.
    pub http_url: String,
}

/// A variable that is missing or wrong.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A variable of the node.
    #[error(transparent)]
    Node(#[from] ConfigError),
    /// The address has another form.
    #[error("environment variable HTTP_ADDRESS: expected an address and a port, found {0:?}")]
    HttpAddress(String),
}

impl Settings {
    /// Reads the variables of the node, `BOWLINE_...`, and those of the service: `HTTP_ADDRESS`, by
    /// default `127.0.0.1:8080`, and `HTTP_URL`, by default derived from the address.
    ///
    /// # Errors
    /// Returns the first variable that is missing or wrong.
    pub fn from_env() -> Result<Self, SettingsError> {
        let variable = |name| env::var(name).ok();
        Self::new(Config::from_env()?, variable("HTTP_ADDRESS"), variable("HTTP_URL"))
    }

    fn new(
        node: Config,
        address: Option<String>,
        url: Option<String>,
    ) -> Result<Self, SettingsError> {
        let address = address.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        let Ok(http_address) = address.parse() else {
            return Err(SettingsError::HttpAddress(address));
        };
        let http_url = url.unwrap_or_else(|| format!("http://{address}"));
        Ok(Self { node, http_address, http_url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_variable() {
        let with = |address: &str| {
            Settings::new(Config::new("data", "n1"), Some(address.to_owned()), None)
        };
        assert_eq!(with("10.0.0.2:80").unwrap().http_url, "http://10.0.0.2:80");
        assert!(with("8080").unwrap_err().to_string().contains("HTTP_ADDRESS"));
    }
}
