#include "server/config/access_flags.h"

#include <fmt/format.h>

#include <charconv>

#include "base/group.h"

namespace sparsed::server {

void DefineAccessFlags(CLI::App& app, Config& config, AccessFlags& flags) {
  app.add_option("--access-file", config.access_file,
                 "Who may call: a YAML file of tokens (hashed), certificates and users, with the "
                 "tenant and the role of each; read again when it changes (default: whoever gets "
                 "here is the operator)")
      ->type_name("FILE.yaml")
      ->group("Access");
  app.add_option("--tls-certificate", config.tls_certificate,
                 "Certificate for TLS at all TCP addresses (PEM, those that vouch for it behind "
                 "it); read again when it changes, like the other two")
      ->type_name("FILE")
      ->group("Access");
  app.add_option("--tls-key", config.tls_key, "Its private key (PEM)")
      ->type_name("FILE")
      ->group("Access");
  app.add_option("--tls-client-ca", config.tls_client_ca,
                 "Authorities whose certificates clients may show in the place of a token (PEM)")
      ->type_name("FILE")
      ->group("Access");
  app.add_flag(
         "--insecure", config.insecure,
         "Serve other machines without TLS or an access file: whoever reaches the address may "
         "do everything, and everybody in between reads it")
      ->group("Access");
  app.add_option("--socket-mode", flags.socket_mode,
                 "Permissions of Unix sockets, as chmod has them (default: as the umask says)")
      ->type_name("OCTAL")
      ->group("Access");
  app.add_option("--socket-group", flags.socket_group, "Group of Unix sockets, by name or number")
      ->type_name("GROUP")
      ->group("Access");
  app.add_option("--audit-log", config.audit_log,
                 "Append a line of JSON for each call that changed something, or was refused to; "
                 "opened anew when it was moved (default: none)")
      ->type_name("FILE")
      ->group("Access");
  app.add_flag(
         "--share-patterns", config.share_patterns,
         "Prepare equal patterns of different tenants once, for tenants that trust each other: "
         "who has such a pattern, others can find out")
      ->group("Access");
  app.add_flag("--metrics-token", config.metrics_token,
               "Have /metrics take a token of the access file, too (default: it is open)")
      ->group("Access");
}

void CompleteAccess(Config& config, const AccessFlags& flags, Problems& problems) {
  if (config.tls_certificate.empty() != config.tls_key.empty()) {
    const bool has_key = config.tls_certificate.empty();
    problems.Add(has_key ? "tls-key" : "tls-certificate",
                 fmt::format("it goes together with {}, which is missing",
                             problems.NameOf(has_key ? "tls-certificate" : "tls-key")));
  }
  if (!config.tls_client_ca.empty() && config.tls_certificate.empty()) {
    problems.Add("tls-client-ca",
                 "certificates of clients come with TLS (--tls-certificate, --tls-key)");
  }
  if (!config.tls_client_ca.empty() && config.access_file.empty()) {
    problems.Add("tls-client-ca",
                 "which tenant a certificate is, the access file says (--access-file)");
  }
  if (config.metrics_token && config.access_file.empty()) {
    problems.Add("metrics-token", "tokens are in the access file (--access-file)");
  }
  if (const std::string& text = flags.socket_mode; !text.empty()) {
    uint32_t mode = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
    if (error != std::errc() || end != text.data() + text.size() || mode > 0777) {
      problems.Add("socket-mode",
                   fmt::format("'{}' is no mode: three octal digits such as 0660", text));
    }
    config.socket_mode = mode;
  }
  if (const std::string& text = flags.socket_group; !text.empty()) {
    config.socket_group = GroupOf(text);
    if (!config.socket_group) {
      problems.Add("socket-group", fmt::format("there is no group '{}'", text));
    }
  }
}

}  // namespace sparsed::server
