//! Extracts the user name from a certificate: the common name of its subject.

use rustls::DistinguishedName;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_IA5STRING, TAG_PRINTABLESTRING, TAG_UTF8STRING};
use yasna::{ASN1Result, BERReader, Tag};

/// Object identifier of the common name.
const COMMON_NAME: [u64; 4] = [2, 5, 4, 3];

/// String types whose bytes are UTF-8.
const TEXTS: [u64; 3] =
    [TAG_UTF8STRING.tag_number, TAG_PRINTABLESTRING.tag_number, TAG_IA5STRING.tag_number];

/// Returns the common name of a certificate. Returns `None` if it is missing, empty or ambiguous.
pub(crate) fn common_name(cert: &CertificateDer<'_>) -> Option<String> {
    let cert = EndEntityCert::try_from(cert).ok()?;
    let subject = DistinguishedName::in_sequence(cert.subject());
    let names = yasna::parse_der(subject.as_ref(), read).ok()?;
    match <[Option<String>; 1]>::try_from(names) {
        Ok([name]) => name.filter(|name| !name.is_empty()),
        Err(_) => None,
    }
}

/// Returns all common names of a subject in order, with `None` for other string types.
fn read(subject: BERReader<'_, '_>) -> ASN1Result<Vec<Option<String>>> {
    let common_name = ObjectIdentifier::from_slice(&COMMON_NAME);
    let mut names = Vec::new();
    subject.read_sequence_of(|set| {
        set.read_set_of(|attribute| {
            attribute.read_sequence(|fields| {
                let kind = fields.next().read_oid()?;
                let value = fields.next().read_tagged_der()?;
                if kind == common_name {
                    let Tag { tag_number, .. } = value.tag();
                    let text = TEXTS.contains(&tag_number).then(|| value.value().to_vec());
                    names.push(text.and_then(|text| String::from_utf8(text).ok()));
                }
                Ok(())
            })
        })
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName as Subject, DnType, DnValue, KeyPair};

    fn certificate(names: &[DnValue]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        let mut subject = Subject::new();
        subject.push(DnType::OrganizationName, "of nobody");
        for name in names {
            subject.push(DnType::CommonName, name.clone());
        }
        params.distinguished_name = subject;
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn certificate_user_is_its_common_name() {
        let utf8 = |text: &str| DnValue::Utf8String(text.to_owned());
        let printable = DnValue::PrintableString("ann".try_into().unwrap());
        let wide = DnValue::BmpString("ann".try_into().unwrap());
        let cases = [
            (vec![utf8("ann")], Some("ann")),
            (vec![utf8("Änn\0")], Some("Änn\0")),
            (vec![printable], Some("ann")),
            (vec![wide], None),
            (vec![utf8("")], None),
            (vec![], None),
        ];
        for (names, user) in cases {
            assert_eq!(common_name(&certificate(&names)).as_deref(), user, "{names:?}");
        }
    }

    #[test]
    fn certificate_with_several_common_names_has_no_user() {
        let cn = |writer: yasna::DERWriter<'_>, name: &str| {
            writer.write_set(|set| {
                set.next().write_sequence(|pair| {
                    pair.next().write_oid(&ObjectIdentifier::from_slice(&COMMON_NAME));
                    pair.next().write_utf8_string(name);
                });
            });
        };
        let subject = yasna::construct_der(|writer| {
            writer.write_sequence(|sets| {
                cn(sets.next(), "ann");
                cn(sets.next(), "root");
            });
        });
        let names = yasna::parse_der(&subject, read).unwrap();
        assert_eq!(names, [Some("ann".to_owned()), Some("root".to_owned())]);
        for end in 0..subject.len() {
            assert!(
                yasna::parse_der(&subject[..end], read).is_err(),
                "half of a certificate is invalid"
            );
        }
        assert_eq!(common_name(&CertificateDer::from(subject)), None, "not a certificate");
    }
}
