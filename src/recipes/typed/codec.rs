//! [`Codec`]: how values are encoded.

use std::error::Error as StdError;

use bytes::Bytes;

use crate::api::{Client, Error, Scope};
use crate::model::{DecodeError, KeyValue, Revision};

use super::keys::TypedRow;

/// The encoding of values of type `T`. The crate feature `json` adds the codec `Json`. Implement
/// this trait for another format:
///
/// ```
/// use std::error::Error;
/// use bowline::{Bytes, typed::Codec};
///
/// /// Numbers as decimal text.
/// #[derive(Clone)]
/// struct Decimal;
///
/// impl Codec<u64> for Decimal {
///     fn encode(&self, value: &u64) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
///         Ok(value.to_string().into())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<u64, Box<dyn Error + Send + Sync>> {
///         Ok(std::str::from_utf8(bytes)?.parse()?)
///     }
/// }
///
/// # use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// let ports = node.client().typed_with("ports/", Decimal);
/// ports.put("http", 8080).block()?;
/// assert_eq!(ports.get("http").block()?.unwrap().value, 8080);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn Error>>(())
/// ```
///
/// While a program is upgraded, old and new versions of it read the same values. So a new version
/// must be able to decode what the old one writes, and the other way around.
pub trait Codec<T>: Clone + Send + Sync + 'static {
    /// Encodes a value.
    ///
    /// # Errors
    /// Returns the reason if the value has no encoding. The call that writes it then fails with
    /// [`Error::Encode`](crate::Error::Encode).
    fn encode(&self, value: &T) -> Result<Bytes, Box<dyn StdError + Send + Sync>>;

    /// Decodes a value.
    ///
    /// # Errors
    /// Returns the reason if the bytes are not the encoding of a value. The call that reads them
    /// then reports a [`DecodeError`](crate::kv::DecodeError).
    fn decode(&self, bytes: &[u8]) -> Result<T, Box<dyn StdError + Send + Sync>>;
}

/// Values as JSON, by serde. Requires the crate feature `json`.
#[cfg(feature = "json")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Codec<T> for Json {
    fn encode(&self, value: &T) -> Result<Bytes, Box<dyn StdError + Send + Sync>> {
        Ok(serde_json::to_vec(value)?.into())
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, Box<dyn StdError + Send + Sync>> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// Encodes a value for a key, or for a queue of this name.
pub(super) fn encode<T>(codec: &impl Codec<T>, key: &Bytes, value: &T) -> Result<Bytes, Error> {
    codec.encode(value).map_err(|why| Error::Encode { key: key.clone(), why: why.to_string() })
}

/// Decodes the value of a key.
pub(super) fn decode<T>(
    codec: &impl Codec<T>,
    key: &Bytes,
    value: &Bytes,
) -> Result<T, DecodeError> {
    codec.decode(value).map_err(|why| DecodeError::new(key, value, why))
}

/// The codec of the rows of a client. Its errors name the keys with the prefix of the client.
#[derive(Clone, Debug)]
pub(super) struct RowCodec<C> {
    pub(super) codec: C,
    scope: Scope,
}

impl<C> RowCodec<C> {
    pub(super) fn new(client: &Client, codec: C) -> Self {
        Self { codec, scope: client.scope.clone() }
    }

    /// Encodes a value for a key without the prefix.
    pub(super) fn encode<T>(&self, key: &Bytes, value: &T) -> Result<Bytes, Error>
    where
        C: Codec<T>,
    {
        encode(&self.codec, &self.scope.key(key.clone()), value)
    }

    /// Decodes the value of a key without the prefix, which was put at `revision`.
    pub(super) fn decode<T>(
        &self,
        key: &Bytes,
        value: &Bytes,
        revision: Revision,
    ) -> Result<T, DecodeError>
    where
        C: Codec<T>,
    {
        let value = decode(&self.codec, key, value);
        value.map_err(|error| error.at(revision).below(self.scope.prefix()))
    }

    pub(super) fn decode_row<T>(&self, row: &KeyValue) -> Result<TypedRow<T>, DecodeError>
    where
        C: Codec<T>,
    {
        Ok(TypedRow {
            value: self.decode(&row.key, &row.value, row.mod_revision)?,
            key: row.key.clone(),
            create_revision: row.create_revision,
            mod_revision: row.mod_revision,
            version: row.version,
            lease: row.lease,
        })
    }
}
