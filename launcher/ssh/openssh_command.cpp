#include "launcher/ssh/openssh_command.h"

#include <array>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/ssh/shell_quoting.h"
#include "launcher/ssh/ssh_target.h"

namespace dstrain::launcher {
namespace {

/// The user and host as ssh takes them.
std::vector<std::string> destination(const OpensshOptions& options, const std::string& host) {
  const SshTarget target = parse_ssh_target(host);
  std::vector<std::string> words;
  const std::uint16_t port = target.port != 0 ? target.port : options.port;
  if (port != 0) words.insert(words.end(), {"-p", std::to_string(port)});
  if (!target.user.empty()) words.insert(words.end(), {"-l", target.user});
  if (!options.config_file.empty()) words.insert(words.end(), {"-F", options.config_file});
  words.push_back(target.host);
  return words;
}

/// Quotes a command for the user's own shell.
std::string by_hand(const OpensshOptions& options, const std::string& host, const char* flag) {
  return fmt::format("ssh {}{} true", flag, fmt::join(destination(options, host), " "));
}

struct Meaning {
  std::string_view sign;  ///< in ssh's words
  const char* phase;
  const char* fix;  ///< {}: how to log in by hand
};
// The first that is found counts: ssh reports what went wrong on a jump host before its
// consequence.
constexpr std::array<Meaning, 12> kMeanings = {{
    {"HOST IDENTIFICATION HAS CHANGED", "host key",
     "ask who runs the host; only if its new key is right, remove the old one with ssh-keygen -R"},
    {"Host key verification failed", "host key",
     "compare the host's fingerprint; if it is right: --accept-new-host-keys, or log in once by "
     "hand: {}"},
    {"Permission denied", "authentication",
     "a login must be possible without a password; this shows what is tried: {}"},
    {"Too many authentication failures", "authentication",
     "name the one key to use: IdentityFile and IdentitiesOnly yes in ~/.ssh/config"},
    {"Could not resolve hostname", "resolve",
     "write the host's address in the hostfile, or HostName in ~/.ssh/config"},
    {"onfiguration option", "configuration", "correct the SSH configuration"},
    {": line ", "configuration", "correct the SSH configuration"},
    {"Unable to negotiate", "greeting", "this shows what both sides offer: {}"},
    {"banner exchange", "greeting", "is that port an SSH server's, and is the host overloaded?"},
    {"kex_exchange_identification", "greeting",
     "is that port an SSH server's, and how many may log in to it, or to the jump host, at once "
     "(MaxStartups)?"},
    {"Connection reset by", "greeting", "see the host's own log (journalctl -u ssh)"},
    {"connect to host", "connect", "is the host up, and does its sshd listen there? {}"},
}};

std::vector<std::string> lines_of(const std::string& words) {
  std::vector<std::string> lines;
  std::istringstream text(words);
  for (std::string line; std::getline(text, line);) {
    while (line.ends_with('\r') || line.ends_with(' '))
      line.pop_back();
    if (line.find_first_not_of("@ ") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::vector<std::string> openssh_command(const OpensshOptions& options,
                                         const std::string& host,
                                         const std::vector<std::string>& remote_argv) {
  std::vector<std::string> argv = {options.program, "-T", "-x", "-e", "none"};
  const auto set = [&](const std::string& option) { argv.insert(argv.end(), {"-o", option}); };
  set("BatchMode=yes");
  set(fmt::format("ConnectTimeout={}", options.connect_timeout.count()));
  set("ServerAliveInterval=1");
  set(fmt::format("ServerAliveCountMax={}", options.silence_limit.count()));
  // Settings for a person's logins would fail in a second login beside the first, or take the place
  // of the agent.
  set("ClearAllForwardings=yes");
  set("RemoteCommand=none");
  set("RequestTTY=no");
  if (options.accept_new_host_keys) set("StrictHostKeyChecking=accept-new");
  const std::vector<std::string> where = destination(options, host);
  argv.insert(argv.end(), where.begin(), where.end());
  // "exec": the shell is replaced, so that signals and the exit code are the program's own.
  argv.push_back("exec " + shell_quoted(remote_argv));
  return argv;
}

HostFailure explain_openssh(const OpensshOptions& options,
                            const std::string& host,
                            const std::string& words,
                            const std::string& why) {
  const std::vector<std::string> lines = lines_of(words);
  for (const Meaning& meaning : kMeanings) {
    for (const std::string& line : lines) {
      if (line.find(meaning.sign) == std::string::npos) continue;
      std::string what = (line.starts_with("ssh: ") ? "" : "ssh: ") + line;
      for (const std::string& other : lines) {  // which key, in which file
        if (other.starts_with("Offending ")) what += "; " + other;
      }
      return {.host = host,
              .phase = meaning.phase,
              .what = what,
              .fix = fmt::format(fmt::runtime(meaning.fix), by_hand(options, host, "-v "))};
    }
  }
  return {.host = host,
          .phase = "ssh",
          .what = lines.empty() ? why : fmt::format("{}: {}", why, lines.back()),
          .fix = "see what it does: " + by_hand(options, host, "-v ")};
}

bool was_turned_away(const std::string& words) {
  for (const char* const sign : {"kex_exchange_identification: ", "Connection reset by "}) {
    if (words.find(sign) != std::string::npos) return true;
  }
  return false;
}

}  // namespace dstrain::launcher
