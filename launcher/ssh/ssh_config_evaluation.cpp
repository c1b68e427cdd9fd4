#include "launcher/ssh/ssh_config_evaluation.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/ssh/host_pattern.h"

namespace dstrain::launcher {
namespace {

/// A directive that is not honoured, although ignoring it would make another login of the one that
/// was asked for. "none" and "no" switch each of them off.
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

std::string expand_signs(const std::string& pattern,
                         const SshDirective& directive,
                         const std::map<char, std::string>& meanings) {
  std::string expanded;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '%') {
      const auto meaning = meanings.find(++i < pattern.size() ? pattern[i] : '\0');
      if (meaning == meanings.end()) {
        std::vector<char> known;
        for (const auto& [letter, value] : meanings)
          known.push_back(letter);
        refuse_here(
            directive, pattern,
            fmt::format("\"{}\": after % only {} are known here", pattern, fmt::join(known, ", ")));
      }
      expanded += meaning->second;
    } else if (pattern.compare(i, 2, "${") == 0 && pattern.find('}', i) != std::string::npos) {
      const size_t close = pattern.find('}', i);
      const std::string name = pattern.substr(i + 2, close - i - 2);
      const char* const value = std::getenv(name.c_str());
      if (value == nullptr) refuse(directive, fmt::format("\"{}\": {} is not set", pattern, name));
      expanded += value;
      i = close;
    } else {
      expanded += pattern[i];
    }
  }
  return expanded;
}

/// An included file lies within the block that includes it: where that block does not apply, none
/// of the file's own does.
void SshConfigEvaluation::run(const std::vector<SshDirective>& directives) {
  bool applies = true;
  for (const SshDirective& directive : directives) {
    if (directive.keyword == "host") {
      const std::vector<std::string_view> patterns(directive.arguments.begin(),
                                                   directive.arguments.end());
      applies = matches_pattern_list(target_.host, patterns);
    } else if (directive.keyword == "match") {
      applies = match(directive);
    } else if (!applies) {
      continue;
    } else if (directive.keyword == "identityfile") {
      identity_files_.push_back(&directive);
    } else {
      first_.try_emplace(directive.keyword, &directive);
      for (const std::vector<SshDirective>& file : directive.included)
        run(file);
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
  return expand_signs(said->arguments[0], *said, {{'%', "%"}, {'h', target_.host}});
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
      if (known && ++i == words.size())
        refuse(directive, fmt::format("Match {} needs a pattern", name));
      if (!known) {
        if (!holds) return false;  // it would not be asked
        refuse_here(
            directive, "Match " + name,
            fmt::format("Match {} is not supported; use Match host, Match user or Host instead",
                        name));
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
                fmt::format("PubkeyAuthentication no applies to host {}, but only keys can log in "
                            "here: there is nobody to type a password",
                            written));
  }
}

}  // namespace dstrain::launcher
