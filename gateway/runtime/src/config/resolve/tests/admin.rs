//! The admin listeners of the programs beside the gateway.

use expect_test::expect;

use super::{MINIMAL, load, refused};

#[test]
fn each_program_beside_the_gateway_may_have_an_admin_listener_of_its_own() {
    let with = |live: &str, journal: &str| {
        format!(
            "{MINIMAL}[live]\nlisten = \"127.0.0.1:2004\"\nkey_file = \"/k\"\n{live}[journal]\ndirectory = \"/j\"\n{journal}\
             [admin]\nlisten = \"127.0.0.1:9464\"\n"
        )
    };
    let (address, path) = ("admin_listen = \"127.0.0.1:9465\"\n", "admin_listen = \"/run/x/admin\"\n");
    let loaded = load(&with(address, path)).unwrap();
    let shown: Vec<_> = loaded.admin_listeners().into_iter().map(|(key, listen)| format!("{key} {listen}")).collect();
    assert_eq!(
        shown,
        ["admin.listen 127.0.0.1:9464", "live.admin_listen 127.0.0.1:9465", "journal.admin_listen /run/x/admin"]
    );
    let settings = loaded.settings();
    assert!(settings.contains(&("live.admin_listen".to_owned(), "\"127.0.0.1:9465\"".to_owned())), "{settings:?}");
    assert_eq!(load(&with("", "")).unwrap().admin_listeners().len(), 1);
    let mirror = load(&format!("{MINIMAL}[mirror]\n{address}")).unwrap();
    let shown: Vec<_> = mirror.admin_listeners().into_iter().map(|(key, listen)| format!("{key} {listen}")).collect();
    assert_eq!(shown, ["mirror.admin_listen 127.0.0.1:9465"]);
    let setting = ("mirror.admin_listen".to_owned(), "\"127.0.0.1:9465\"".to_owned());
    assert!(mirror.settings().contains(&setting), "{:?}", mirror.settings());
    assert_eq!(load(&format!("{MINIMAL}[mirror]\n")).unwrap().admin_listeners(), []);
    let open = load(&with("admin_listen = \"10.1.2.3:9465\"\n", "")).unwrap();
    assert!(
        open.warnings.iter().any(|warning| warning.starts_with("live.admin_listen 10.1.2.3:9465 is not on loopback"))
    );
    refused(
        &with(address, address),
        expect![
            "x.toml:34:16: journal.admin_listen: 127.0.0.1:9465: this is live.admin_listen; each listener needs its own"
        ],
    );
    refused(
        &with("admin_listen = \"127.0.0.1:9464\"\n", ""),
        expect!["x.toml:31:16: live.admin_listen: 127.0.0.1:9464: this is admin.listen; each listener needs its own"],
    );
}
