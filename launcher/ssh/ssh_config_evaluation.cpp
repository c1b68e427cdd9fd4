#include "launcher/ssh/ssh_config_evaluation.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "launcher/ssh/host_pattern.h"

namespace dstrain::launcher {
namespace {

/// Honoured here, first value wins.
constexpr std::array<std::string_view, 13> kHonoured = {"hostname",
                                                        "port",
                                                        "user",
                                                        "identitiesonly",
                                                        "identityagent",
                                                        "userknownhostsfile",
                                                        "hostkeyalias",
                                                        "connecttimeout",
                                                        "globalknownhostsfile",
                                                        "addressfamily",
                                                        "bindaddress",
                                                        "stricthostkeychecking",
                                                        "pubkeyauthentication"};

/// A directive that is not honoured, without which a login would not be the login that was asked
/// for. "none" and "no" switch each of them off.
struct Refused {
  std::string_view keyword;
  const char* name;
  const char* fix;
};
constexpr std::array<Refused, 8> kRefused = {{
    {"proxyjump", "ProxyJump", "start the launcher on a machine that reaches the host directly"},
    {"proxycommand", "ProxyCommand",
     "start the launcher on a machine that reaches the host directly"},
    {"certificatefile", "CertificateFile", "log in with a plain key"},
    {"pkcs11provider", "PKCS11Provider", "put the key into an ssh-agent (ssh-add -s)"},
    {"knownhostscommand", "KnownHostsCommand", "put the keys into a known_hosts file"},
    {"revokedhostkeys", "RevokedHostKeys", "mark the keys @revoked in a known_hosts file"},
    {"canonicalizehostname", "CanonicalizeHostname", "write the full name in the hostfile"},
    {"bindinterface", "BindInterface", "use BindAddress"},
}};

}  // namespace

void refuse(const SshDirective& directive, const std::string& what) {
  throw SshConfigError(fmt::format("{}: {}", directive.where, what));
}

void refuse_here(const SshDirective& directive, const std::string& name, const std::string& what) {
  throw SshConfigError(fmt::format("{}: {}", directive.where, what),
                       fmt::format("{} ({})", name, directive.where));
}

void SshConfigEvaluation::run(const std::vector<SshDirective>& directives) {
  std::vector<bool> around;  // of each included file: whether the block around it applies
  bool enclosing = true;
  bool applies = true;
  for (const SshDirective& directive : directives) {
    if (directive.keyword == kFileBegins) {
      around.push_back(enclosing);
      around.push_back(applies);
      enclosing = applies;
    } else if (directive.keyword == kFileEnds) {
      applies = around.back();
      around.pop_back();
      enclosing = around.back();
      around.pop_back();
    } else if (directive.keyword == "host") {
      const std::vector<std::string_view> patterns(directive.arguments.begin(),
                                                   directive.arguments.end());
      applies = enclosing && matches_pattern_list(target_.host, patterns);
    } else if (directive.keyword == "match") {
      applies = enclosing && match(directive);
    } else if (applies) {
      take(directive);
    }
  }
}

const SshDirective* SshConfigEvaluation::find(std::string_view keyword) const {
  const auto found = first_.find(keyword);
  return found == first_.end() ? nullptr : found->second;
}

std::string SshConfigEvaluation::user() const {
  if (!target_.user.empty()) return target_.user;
  const SshDirective* const said = find("user");
  return said != nullptr ? said->arguments[0] : own_name_;
}

std::string SshConfigEvaluation::host_name() const {
  const SshDirective* const said = find("hostname");
  if (said == nullptr) return target_.host;
  std::string name;
  const std::string& pattern = said->arguments[0];
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      name += pattern[i];
    } else if (++i < pattern.size() && pattern[i] == 'h') {
      name += target_.host;
    } else if (i < pattern.size() && pattern[i] == '%') {
      name += '%';
    } else {
      refuse_here(*said, "HostName " + pattern,
                  fmt::format("HostName {}: only %h and %% are known here", pattern));
    }
  }
  return name;
}

void SshConfigEvaluation::take(const SshDirective& directive) {
  if (directive.keyword == "identityfile") {
    identity_files_.push_back(&directive);
    return;
  }
  const bool refused = std::any_of(kRefused.begin(), kRefused.end(), [&](const Refused& r) {
    return r.keyword == directive.keyword;
  });
  const bool honoured =
      std::find(kHonoured.begin(), kHonoured.end(), directive.keyword) != kHonoured.end();
  if (refused || honoured) first_.try_emplace(directive.keyword, &directive);
}

bool SshConfigEvaluation::match(const SshDirective& directive) const {
  const std::vector<std::string>& words = directive.arguments;
  bool holds = true;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string_view criterion = words[i];
    const bool negated = criterion.starts_with('!');
    if (negated) criterion.remove_prefix(1);
    std::string name(criterion);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    bool this_holds = true;
    if (name == "canonical") {
      this_holds = false;  // names are never canonicalised here
    } else if (name != "all") {
      const bool known =
          name == "host" || name == "originalhost" || name == "user" || name == "localuser";
      if (known && ++i == words.size()) refuse(directive, fmt::format("Match {}: of what?", name));
      if (!known) {
        if (!holds) return false;  // it would not be asked
        refuse_here(
            directive, "Match " + name,
            fmt::format("Match {} is not supported; say it with Match host, user or Host", name));
      }
      const std::string value = name == "host"           ? host_name()
                                : name == "originalhost" ? target_.host
                                : name == "user"         ? user()
                                                         : own_name_;
      this_holds = matches_comma_list(value, words[i]);
    }
    holds = holds && this_holds != negated;
  }
  return holds;
}

void SshConfigEvaluation::refuse_unsupported(const std::string& written) const {
  for (const Refused& refused : kRefused) {
    const SshDirective* const said = find(refused.keyword);
    if (said == nullptr || said->arguments[0] == "none" || said->arguments[0] == "no") continue;
    refuse_here(*said, refused.name,
                fmt::format("{} applies to host {} and is not supported; {}, or exclude the host "
                            "from this setting",
                            refused.name, written, refused.fix));
  }
  const SshDirective* const keys = find("pubkeyauthentication");
  if (keys != nullptr && keys->arguments[0] == "no") {
    refuse_here(*keys, "PubkeyAuthentication no",
                fmt::format("PubkeyAuthentication no applies to host {}, and keys are the only way "
                            "in here: nobody is there to type a password",
                            written));
  }
}

}  // namespace dstrain::launcher
