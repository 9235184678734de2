//! The commands of `rowtide-hub` and what they print.
//!
//! Standard output carries only what a script wants: a token, a list. Exit code 2 is for a wrong
//! command line or configuration, 1 for whatever goes wrong afterwards.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{ArgGroup, Args, Parser, Subcommand};
use hub::Hub;
use hub::catalog::{Catalog, CreateError, CredentialKind, NewToken, ProjectId, is_plain_name};
use hub::config::{HubConfig, Overrides};
use serde_json::json;
use sync_proto::limits::NAME_CHARS_MAX;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

const EXIT_RUNTIME: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// How long work on other threads may go on after the last answer.
const THREADS_GRACE: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  rowtide-hub serve                                   embedded stores, http://127.0.0.1:8787
  rowtide-hub serve --config /etc/rowtide/hub.toml
  rowtide-hub token new --device gw-07 > gw-07.token
  rowtide-hub token new --api --name dashboard";

const SERVE_EXAMPLES: &str = "\
Examples:
  rowtide-hub serve
  rowtide-hub serve --listen 127.0.0.1:0 --data ./hub --ready-file ./hub.address
  rowtide-hub serve --config /etc/rowtide/hub.toml

The file's keys, all optional:
  [hub]        listen, data, auto_provision, allow_plaintext
  [tls]        cert_file, key_file
  [retention]  days";

const TOKEN_EXAMPLES: &str = "\
Examples:
  rowtide-hub token new --device gw-07 --data ./hub > gw-07.token
  rowtide-hub token new --api --name dashboard
  rowtide-hub token list --json
  rowtide-hub token revoke 3

The hub may run meanwhile; a revoked token is refused from the next request on.";

/// The cloud end of Rowtide: stores rows of devices and sends rows to them.
#[derive(Parser, Debug)]
#[command(name = "rowtide-hub", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve devices and the HTTP API.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Give out, list and revoke tokens.
    #[command(after_help = TOKEN_EXAMPLES)]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
}

#[derive(Args, Debug)]
struct StoreArgs {
    /// The configuration file (hub.toml). Flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of the embedded stores [default: rowtide-hub-data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct ServeArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The IP address and port to listen on; port 0 takes a free one [default: 127.0.0.1:8787].
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Serve plain http beyond loopback: tokens and rows can be read on the way.
    #[arg(long)]
    allow_plaintext: bool,
    /// Write the address to this file once the hub is ready.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum TokenCommand {
    /// Make a token and print it, once: only its hash is kept.
    #[command(group(ArgGroup::new("kind").required(true).args(["device", "api"])))]
    New {
        /// A token for the device of this name; it acts only as itself.
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        device: Option<String>,
        /// A token for callers of the HTTP API.
        #[arg(long)]
        api: bool,
        /// What the API token is for: the author in the history of rows.
        #[arg(long, requires = "api", value_name = "N", value_parser = parse_name,
              default_value = "api")]
        name: String,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// List tokens, without their text.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Make a token worthless.
    Revoke {
        /// The token's number in `token list`.
        id: i64,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// An error and the exit code that it ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    pub(crate) code: u8,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), code: EXIT_RUNTIME }
    }
}

fn usage(error: impl Into<anyhow::Error>) -> Failure {
    Failure { error: error.into(), code: EXIT_USAGE }
}

/// Runs one command.
pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Serve(args) => serve(args),
        Command::Token { command } => token(command),
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    let flags = Overrides {
        listen: args.listen,
        data: args.store.data,
        allow_plaintext: args.allow_plaintext,
    };
    let config = HubConfig::load(args.store.config.as_deref(), flags).map_err(usage)?;
    start_log();
    let runtime = Runtime::new().context("no threads can be started")?;
    let served = runtime.block_on(async {
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let end = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        hub::serve::serve(config, args.ready_file.as_deref(), end).await?;
        Ok::<(), anyhow::Error>(())
    });
    runtime.shutdown_timeout(THREADS_GRACE);
    Ok(served?)
}

fn start_log() {
    use tracing_subscriber::EnvFilter;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
}

fn token(command: TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::New { device, name, store, api: _ } => {
            let kind = match device {
                Some(name) => CredentialKind::Device { name },
                None => CredentialKind::Api { name },
            };
            new_token(&store, kind)
        }
        TokenCommand::List { json, store } => list_tokens(&store, json),
        TokenCommand::Revoke { id, store } => revoke_token(&store, id),
    }
}

fn new_token(store: &StoreArgs, kind: CredentialKind) -> Result<(), Failure> {
    with_catalog(store, |runtime, catalog| {
        let project = ProjectId::default_project();
        let new = NewToken { project, kind, roles: vec!["*".to_owned()] };
        match runtime.block_on(catalog.create_token(new)) {
            Ok(plain) => print(&plain),
            Err(CreateError::Invalid(message)) => Err(usage(anyhow!(message))),
            Err(error) => Err(error.into()),
        }
    })
}

fn list_tokens(store: &StoreArgs, as_json: bool) -> Result<(), Failure> {
    with_catalog(store, |runtime, catalog| {
        let tokens = runtime.block_on(catalog.tokens(&ProjectId::default_project()))?;
        let parts = |kind: &CredentialKind| match kind {
            CredentialKind::Device { name } => ("device", name.clone()),
            CredentialKind::Api { name } => ("api", name.clone()),
        };
        let mut out = String::new();
        for token in &tokens {
            let (kind, name) = parts(&token.kind);
            let (id, created_at) = (token.id, token.created_at);
            out.push_str(&format!("{id:>6}  {kind:<6}  {name:<32}  {created_at}\n"));
        }
        if as_json {
            let shown = tokens.iter().map(|token| {
                let (kind, name) = parts(&token.kind);
                let created_at = token.created_at.to_string();
                json!({"id": token.id, "kind": kind, "name": name, "created_at": created_at})
            });
            out = json!({"tokens": shown.collect::<Vec<_>>()}).to_string();
        }
        print(out.trim_end())
    })
}

fn revoke_token(store: &StoreArgs, id: i64) -> Result<(), Failure> {
    with_catalog(store, |runtime, catalog| {
        if runtime.block_on(catalog.revoke_token(&ProjectId::default_project(), id))? {
            Ok(())
        } else {
            Err(anyhow!("there is no token {id}: see `rowtide-hub token list`").into())
        }
    })
}

fn with_catalog(
    store: &StoreArgs,
    work: impl FnOnce(&Runtime, &Arc<dyn Catalog>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let flags = Overrides { data: store.data.clone(), ..Overrides::default() };
    let config = HubConfig::load(store.config.as_deref(), flags).map_err(usage)?;
    let runtime = Runtime::new().context("no threads can be started")?;
    let catalog = {
        let _inside = runtime.enter();
        Hub::open_catalog(&config.data)?
    };
    work(&runtime, &catalog)
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").context("standard output cannot be written")?;
    Ok(())
}

/// Names of devices and API tokens: they stand in paths, topics and logs.
fn parse_name(name: &str) -> anyhow::Result<String> {
    if !is_plain_name(name) {
        bail!("a name has 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 . _ -");
    }
    Ok(name.to_owned())
}
