//! Configuration from environment variables.

use std::net::SocketAddr;

use bowline::Config;

/// The settings of one process.
#[derive(Debug)]
pub struct Settings {
    /// Configuration of the node.
    pub node: Config,
    /// Address on which the service listens for HTTP.
    pub http_address: SocketAddr,
    /// URL at which clients reach this process, for example after a request to another process.
    pub http_url: String,
}

/// A variable that is missing or wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The variable is required.
    #[error("environment variable {0} is not set: expected {1}")]
    Missing(&'static str, &'static str),
    /// The variable has a value that does not fit.
    #[error("environment variable {0} is {1:?}: expected {2}")]
    Invalid(&'static str, String, &'static str),
}

impl Settings {
    /// Reads the settings of this process.
    ///
    /// # Errors
    /// Returns the first variable that is missing or wrong.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the settings from any source of variables, for tests.
    ///
    /// # Errors
    /// Returns the first variable that is missing or wrong.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        const ADDRESS: &str = "an address to listen on, such as 127.0.0.1:8080";
        let address = get("HTTP_ADDRESS").unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        let http_address = address
            .parse()
            .map_err(|_| SettingsError::Invalid("HTTP_ADDRESS", address.clone(), ADDRESS))?;
        let http_url = get("HTTP_URL").unwrap_or_else(|| format!("http://{address}"));
        // Other members learn the URL, also for `LeaderLayer::of_consensus`.
        let node = node_config(&get)?.endpoints([http_url.clone()]);
        Ok(Self { node, http_address, http_url })
    }
}

/// Returns the configuration of the node.
fn node_config(get: impl Fn(&str) -> Option<String>) -> Result<Config, SettingsError> {
    const MEMBERS: &str = "all members, such as n1=10.0.0.1:7400,n2=10.0.0.2:7400,n3=10.0.0.3:7400";
    let required = |name, expected| get(name).ok_or(SettingsError::Missing(name, expected));
    let name = required("BOWLINE_NAME", "the name of this member, such as n1")?;
    let dir = required("BOWLINE_DATA_DIR", "a directory that only this member uses")?;
    let list = required("BOWLINE_MEMBERS", MEMBERS)?;
    let members = list.split(',').map(|member| member.trim().split_once('='));
    let members: Option<Vec<_>> = members.collect();
    let members = members
        .filter(|members| members.iter().any(|(member, _)| *member == name))
        .ok_or_else(|| SettingsError::Invalid("BOWLINE_MEMBERS", list.clone(), MEMBERS))?;
    Ok(Config::new(dir, name).members(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: [(&str, &str); 4] = [
        ("BOWLINE_NAME", "n2"),
        ("BOWLINE_DATA_DIR", "/tmp/flags"),
        ("BOWLINE_MEMBERS", "n1=10.0.0.1:7400, n2=10.0.0.2:7400"),
        ("HTTP_ADDRESS", "10.0.0.2:80"),
    ];

    fn with(name: &str, value: Option<&str>) -> Result<Settings, SettingsError> {
        Settings::from_lookup(|asked| match VALID.iter().find(|(valid, _)| *valid == asked) {
            _ if asked == name => value.map(str::to_owned),
            found => found.map(|(_, value)| (*value).to_owned()),
        })
    }

    #[test]
    fn errors_name_the_variable() {
        let settings = with("HTTP_URL", None).unwrap();
        assert_eq!(settings.http_url, "http://10.0.0.2:80");
        for name in ["BOWLINE_NAME", "BOWLINE_DATA_DIR", "BOWLINE_MEMBERS"] {
            let error = with(name, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("environment variable {name} is not set")));
        }
        for (name, value) in [("HTTP_ADDRESS", "8080"), ("BOWLINE_MEMBERS", "n1,n2")] {
            let error = with(name, Some(value)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("environment variable {name} is {value:?}")));
        }
        let error = with("BOWLINE_NAME", Some("n9")).unwrap_err();
        assert!(matches!(error, SettingsError::Invalid("BOWLINE_MEMBERS", ..)), "{error}");
    }
}
