#include "server/config/cluster_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <string>

#include "server/config/values.h"

namespace sparsed::server {
namespace {

/// Empty, or what is wrong with it as the name of a node.
std::string NodeNameError(const std::string& name) {
  constexpr size_t kMost = 63;
  const bool plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") ==
      std::string::npos;
  if (!name.empty() && name.size() <= kMost && plain) return {};
  return fmt::format("'{}' is no name of a node: 1 to {} of [A-Za-z0-9._-]", name, kMost);
}

CLI::Validator HostAndPort() {
  return CLI::Validator([](std::string& address) { return AddressError(address, false); },
                        "HOST:PORT");
}

}  // namespace

void DefineClusterFlags(CLI::App& app, Config& config) {
  app.add_option("--etcd", config.etcd,
                 "Be a node of the cluster whose directory this etcd is: HOST:PORT of its members "
                 "(default: a server by itself)")
      ->check(HostAndPort())
      ->delimiter(',')
      ->group("Cluster");
  app.add_option("--etcd-ca", config.etcd_ca,
                 "Authorities that vouch for etcd's certificates (PEM), which is called over TLS "
                 "then (default: in plain text)")
      ->type_name("FILE")
      ->group("Cluster");
  app.add_option("--etcd-certificate", config.etcd_certificate,
                 "Certificate that is shown to an etcd which asks for one (PEM)")
      ->type_name("FILE")
      ->group("Cluster");
  app.add_option("--etcd-key", config.etcd_key, "Its private key (PEM)")
      ->type_name("FILE")
      ->group("Cluster");
  app.add_option("--cluster-staleness", config.cluster_staleness_seconds,
                 "Seconds, at most, that what this node has heard of etcd may be old when it "
                 "serves reads and products of matrices; 0: it serves them while etcd is away")
      ->check(Seconds(0, 86400))
      ->capture_default_str()
      ->group("Cluster");
  app.add_option(
         "--cluster-settle", config.cluster_settle_seconds,
         "Seconds for which no node has to come, go or be drained before matrices move, one "
         "at a time, to nodes that joined; 0: they stay where they are")
      ->check(Seconds(0, 86400))
      ->capture_default_str()
      ->group("Cluster");
  app.add_option("--advertise", config.advertise,
                 "Where clients and other nodes reach this one; needed with --etcd")
      ->check(HostAndPort())
      ->group("Cluster");
  app.add_option(
         "--node", config.node,
         "Name of this node, of which there is one in the cluster, and which stays with its "
         "data directory (default: the host's name)")
      ->check(CLI::Validator([](std::string& name) { return NodeNameError(name); }, "NAME"))
      ->group("Cluster");
  app.add_option(
         "--replicas", config.replicas,
         "Nodes that have each matrix: an upload is acknowledged when it is durable on all; "
         "the same for all nodes")
      ->check(Whole(1, 16))
      ->capture_default_str()
      ->group("Cluster");
  app.add_option(
         "--replication-rate", config.replication_rate_bytes,
         "Bytes a second for copies that are made again in the background; 0: as fast as it "
         "goes")
      ->transform(Size())
      ->default_str("256MiB")
      ->group("Cluster");
  app.add_option("--cluster-token-file", config.cluster_token_file,
                 "A file with a secret that all nodes have, by which they know each other: needed "
                 "with --etcd where there is an access file, and with it --tls-certificate and "
                 "--cluster-ca; who has it may do everything")
      ->type_name("FILE")
      ->group("Cluster");
  app.add_option(
         "--cluster-ca", config.cluster_ca,
         "Authorities that vouch for the certificates of nodes, and for nobody else's (PEM; "
         "default: the system's)")
      ->type_name("FILE")
      ->group("Cluster");
}

void CompleteCluster(Config& config, Problems& problems) {
  if (config.etcd.empty()) {
    const auto alone = [&](const char* flag, bool given) {
      if (given) problems.Add(flag, "it is for nodes of a cluster (--etcd)");
    };
    alone("etcd-ca", !config.etcd_ca.empty());
    alone("etcd-certificate", !config.etcd_certificate.empty());
    alone("etcd-key", !config.etcd_key.empty());
    alone("cluster-staleness", config.cluster_staleness_seconds != 0);
    alone("cluster-settle", config.cluster_settle_seconds != Config().cluster_settle_seconds);
    alone("advertise", !config.advertise.empty());
    alone("node", !config.node.empty());
    alone("replicas", config.replicas != 1);
    alone("cluster-token-file", !config.cluster_token_file.empty());
    alone("cluster-ca", !config.cluster_ca.empty());
    return;
  }
  if (config.advertise.empty()) {
    problems.Add("etcd", fmt::format("a node says where others reach it ({}, which is missing)",
                                     problems.NameOf("advertise")));
  } else if (config.advertise.ends_with(":0")) {
    problems.Add("advertise", fmt::format("nobody reaches port 0 of '{}'", config.advertise));
  }
  if (!config.access_file.empty() && config.cluster_token_file.empty()) {
    problems.Add("etcd", fmt::format("with an access file nodes know each other by a secret ({}, "
                                     "which is missing)",
                                     problems.NameOf("cluster-token-file")));
  }
  // The directory says where nodes are: whoever can write there must not be told the secret.
  if (!config.cluster_token_file.empty() && config.tls_certificate.empty()) {
    problems.Add("cluster-token-file",
                 fmt::format("the secret does not travel in plain text ({}, which is missing)",
                             problems.NameOf("tls-certificate")));
  }
  if (!config.cluster_token_file.empty() && config.cluster_ca.empty()) {
    problems.Add("cluster-token-file",
                 fmt::format("it is shown to those alone for whom the cluster's authorities vouch "
                             "({}, which is missing)",
                             problems.NameOf("cluster-ca")));
  }
  if (!config.cluster_ca.empty() && config.tls_certificate.empty()) {
    problems.Add("cluster-ca", "nodes have certificates where they speak TLS (--tls-certificate)");
  }
  if (config.etcd_certificate.empty() != config.etcd_key.empty()) {
    const bool has_key = !config.etcd_key.empty();
    problems.Add(has_key ? "etcd-key" : "etcd-certificate",
                 fmt::format("a certificate and its key go together ({}, which is missing)",
                             problems.NameOf(has_key ? "etcd-certificate" : "etcd-key")));
  }
  if (!config.etcd_certificate.empty() && config.etcd_ca.empty()) {
    problems.Add("etcd-certificate", fmt::format("it is shown over TLS ({}, which is missing)",
                                                 problems.NameOf("etcd-ca")));
  }
  // A node hears of etcd about once a second.
  constexpr double kLeastStaleness = 3;
  if (config.cluster_staleness_seconds != 0 && config.cluster_staleness_seconds < kLeastStaleness) {
    problems.Add("cluster-staleness",
                 fmt::format("a node that is well may be {} s behind etcd", kLeastStaleness));
  }
  if (config.replicas > 1 && config.in_memory()) {
    problems.Add("replicas", "copies are acknowledged when they are durable (--data-dir)");
  }
  if (config.node.empty()) {
    std::array<char, 64> host{};
    gethostname(host.data(), host.size() - 1);
    config.node = host.data();
    if (const std::string error = NodeNameError(config.node); !error.empty()) {
      problems.Add("etcd", fmt::format("{} (--node)", error));
    }
  }
}

}  // namespace sparsed::server
