#include "launcher/ssh/ssh_config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include "launcher/hosts/local_host.h"
#include "launcher/ssh/ssh_config_evaluation.h"
#include "launcher/ssh/ssh_target.h"

namespace dstrain::launcher {
namespace {

template <typename Value>
Value parse_choice(const SshDirective& directive,
                   std::initializer_list<std::pair<std::string_view, Value>> choices,
                   const char* expected) {
  const std::string& text = directive.arguments[0];
  for (const auto& [word, value] : choices) {
    if (text == word) return value;
  }
  refuse(directive, fmt::format("\"{}\": expected {}", text, expected));
}

bool parse_yes(const SshDirective& directive) {
  return parse_choice<bool>(
      directive, {{"yes", true}, {"true", true}, {"no", false}, {"false", false}}, "yes or no");
}

template <typename Number>
Number parse_number(const SshDirective& directive, Number least, const char* expected) {
  const std::string& text = directive.arguments[0];
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least) {
    refuse(directive, fmt::format("\"{}\": expected {}", text, expected));
  }
  return number;
}

HostKeyPolicy parse_policy(const SshDirective& directive) {
  constexpr auto kStrict = HostKeyPolicy::kStrict;
  constexpr auto kAcceptNew = HostKeyPolicy::kAcceptNew;
  return parse_choice<HostKeyPolicy>(directive,
                                     {{"yes", kStrict},
                                      {"true", kStrict},
                                      {"ask", kStrict},
                                      {"accept-new", kAcceptNew},
                                      {"no", kAcceptNew},
                                      {"false", kAcceptNew},
                                      {"off", kAcceptNew}},
                                     "yes, ask, accept-new or no");
}

AddressFamily parse_family(const SshDirective& directive) {
  return parse_choice<AddressFamily>(directive,
                                     {{"any", AddressFamily::kAny},
                                      {"inet", AddressFamily::kIpv4},
                                      {"inet6", AddressFamily::kIpv6}},
                                     "any, inet or inet6");
}

/// A path with "~", ${VARIABLE} and OpenSSH's % signs.
std::string expand_path(const std::string& pattern,
                        const SshDirective& directive,
                        const SshHostSettings& host,
                        const SshTarget& target,
                        const SshUser& user) {
  const bool is_in_home = pattern == "~" || pattern.starts_with("~/");
  return (is_in_home ? user.home : "") +
         expand_signs(pattern.substr(is_in_home ? 1 : 0), directive,
                      {{'%', "%"},
                       {'d', user.home},
                       {'u', user.name},
                       {'l', user.hostname},
                       {'h', host.host_name},
                       {'n', target.host},
                       {'p', std::to_string(host.port)},
                       {'r', host.user},
                       {'k', host.host_key_alias.empty() ? target.host : host.host_key_alias}});
}

}  // namespace

SshUser SshUser::of_this_process() {
  SshUser user;
  const passwd* const entry = getpwuid(getuid());
  const char* const home = std::getenv("HOME");
  const char* const agent = std::getenv("SSH_AUTH_SOCK");
  if (entry != nullptr) {
    user.home = entry->pw_dir;
    user.name = entry->pw_name;
  }
  if (home != nullptr && *home != '\0') user.home = home;
  if (agent != nullptr) user.agent_socket = agent;
  user.hostname = own_hostname();
  return user;
}

std::string SshHostSettings::known_as() const {
  const std::string& name = host_key_alias.empty() ? host_name : host_key_alias;
  // An alias stands for the key, whatever the port.
  return port == 22 || !host_key_alias.empty() ? name : fmt::format("[{}]:{}", name, port);
}

SshConfig::SshConfig(SshUser user, const std::string& user_file, const std::string& system_file)
    : user_(std::move(user)),
      files_{
          read_ssh_config_file(user_file,
                               {.include_folder = user_.home + "/.ssh", .home = user_.home}),
          read_ssh_config_file(system_file, {.include_folder = "/etc/ssh", .home = user_.home})} {}

SshConfig SshConfig::of_this_process() {
  SshUser user = SshUser::of_this_process();
  const std::string own_file = user.home + "/.ssh/config";
  return {std::move(user), own_file, "/etc/ssh/ssh_config"};
}

SshHostSettings SshConfig::settings_for(const std::string& written) const {
  const SshTarget target = parse_ssh_target(written);
  SshConfigEvaluation said(target, user_.name);
  for (const std::vector<SshDirective>& file : files_)
    said.run(file);
  said.refuse_unsupported(written);

  SshHostSettings host{.written = written, .host_name = said.host_name(), .user = said.user()};
  if (const auto* const d = said.find("port")) {
    host.port = parse_number<std::uint16_t>(*d, 1, "a port from 1 to 65535");
  }
  if (target.port != 0) host.port = target.port;
  if (const auto* const d = said.find("hostkeyalias")) host.host_key_alias = d->arguments[0];
  if (const auto* const d = said.find("bindaddress")) host.bind_address = d->arguments[0];
  if (const auto* const d = said.find("addressfamily")) host.family = parse_family(*d);
  if (const auto* const d = said.find("identitiesonly")) host.identities_only = parse_yes(*d);
  if (const auto* const d = said.find("stricthostkeychecking")) {
    host.host_key_policy = parse_policy(*d);
  }
  if (const auto* const d = said.find("connecttimeout"); d && d->arguments[0] != "none") {
    host.connect_timeout = std::chrono::seconds{parse_number<int>(*d, 1, "seconds, or none")};
  }
  const auto expanded = [&](const std::string& pattern, const SshDirective& directive) {
    return expand_path(pattern, directive, host, target, user_);
  };

  host.agent_socket = user_.agent_socket;
  if (const auto* const d = said.find("identityagent")) {
    const std::string& value = d->arguments[0];
    if (value == "none") {
      host.agent_socket.clear();
    } else if (value.starts_with('$') && !value.starts_with("${")) {
      const char* const variable = std::getenv(value.c_str() + 1);
      host.agent_socket = variable == nullptr ? "" : variable;
    } else if (value != "SSH_AUTH_SOCK") {
      host.agent_socket = expanded(value, *d);
    }
  }
  for (const SshDirective* const d : said.identity_files()) {
    if (d->arguments[0] == "none") continue;
    const std::string path = expanded(d->arguments[0], *d);
    auto& files = host.identity_files;
    if (std::find(files.begin(), files.end(), path) == files.end()) files.push_back(path);
  }
  if (said.identity_files().empty()) {
    for (const char* const name : {"id_ed25519", "id_ecdsa", "id_rsa"})
      host.identity_files.push_back(fmt::format("{}/.ssh/{}", user_.home, name));
  }
  const auto add_known_hosts = [&](const char* keyword, const std::vector<std::string>& otherwise) {
    const SshDirective* const d = said.find(keyword);
    if (d == nullptr) {
      host.known_hosts.insert(host.known_hosts.end(), otherwise.begin(), otherwise.end());
      return;
    }
    for (const std::string& pattern : d->arguments) {
      if (pattern != "none") host.known_hosts.push_back(expanded(pattern, *d));
    }
  };
  add_known_hosts("userknownhostsfile",
                  {user_.home + "/.ssh/known_hosts", user_.home + "/.ssh/known_hosts2"});
  host.user_known_hosts = host.known_hosts.size();
  add_known_hosts("globalknownhostsfile",
                  {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"});
  return host;
}

}  // namespace dstrain::launcher
