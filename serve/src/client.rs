//! Clients, which take turns.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// Sender of a request: its key if there are several keys, else its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// Index of the key.
    Key(usize),
    /// Address, or of an IPv6 address its network: each host can have 2^64 addresses in one.
    Peer(IpAddr),
}

/// The address, or the number of the key, from 1 on.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(index) => write!(f, "key {}", index + 1),
            Self::Peer(address) => write!(f, "{address}"),
        }
    }
}

impl Client {
    pub fn peer(address: IpAddr) -> Self {
        Self::Peer(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let client = |text: &str| Client::peer(text.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::2:0:0:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.2"), client("10.0.0.1"));
    }
}
