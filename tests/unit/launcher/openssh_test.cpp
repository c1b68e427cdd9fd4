// OpenSSH's client as the launcher uses it: its command line, what its words mean, and when it can
// do more than libssh2.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "launcher/process/errors.h"
#include "launcher/ssh/openssh_command.h"
#include "launcher/ssh/openssh_login.h"
#include "launcher/ssh/ssh_shortfall.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const OpensshOptions kOptions{.program = "/usr/bin/ssh"};

/// The arguments after the options that are always present.
std::vector<std::string> destination(const OpensshOptions& options, const std::string& host) {
  std::vector<std::string> argv = openssh_command(options, host, {"/opt/d s/dstrain", "agent"});
  CHECK(argv.front() == "/usr/bin/ssh");
  CHECK(argv.back() == "exec '/opt/d s/dstrain' 'agent'");
  argv.pop_back();
  auto last = argv.end();
  while (last != argv.begin() && *(last - 1) != "RequestTTY=no" &&
         (last - 1)->find("StrictHostKeyChecking") == std::string::npos)
    --last;
  return {last, argv.end()};
}

TEST_CASE("a host of the hostfile becomes ssh's own words", "[launcher][openssh]") {
  using Words = std::vector<std::string>;
  CHECK(destination(kOptions, "w0") == Words{"w0"});
  CHECK(destination(kOptions, "me@w0:2222") == Words{"-p", "2222", "-l", "me", "w0"});
  CHECK(destination(kOptions, "[fd00::7]:24") == Words{"-p", "24", "fd00::7"});
  OpensshOptions options = kOptions;
  options.port = 2200;
  options.config_file = "/tmp/my config";
  CHECK(destination(options, "w0") == Words{"-p", "2200", "-F", "/tmp/my config", "w0"});
  CHECK(destination(options, "w0:22") == Words{"-p", "22", "-F", "/tmp/my config", "w0"});
  CHECK_THROWS_AS(openssh_command(kOptions, "-oProxyCommand=x", {"true"}), HostfileError);
  options.accept_new_host_keys = true;
  options.connect_timeout = std::chrono::seconds{7};
  const Words argv = openssh_command(options, "w0", {"true"});
  for (const char* const option :
       {"BatchMode=yes", "ConnectTimeout=7", "StrictHostKeyChecking=accept-new"})
    CHECK(std::count(argv.begin(), argv.end(), option) == 1);
}

TEST_CASE("ssh's words become a phase, a sentence and a mend", "[launcher][openssh]") {
  const auto phase_of = [](const std::string& words) {
    const HostFailure failure = explain_openssh(kOptions, "w0:24", words, "ssh could not log in");
    CHECK(failure.host == "w0:24");
    CHECK_FALSE(failure.fix.empty());
    CHECK(failure.fix.find("{}") == std::string::npos);
    return failure.phase;
  };
  CHECK(phase_of("ssh: connect to host w0 port 24: No route to host\r\n") == "connect");
  CHECK(phase_of("ssh: Could not resolve hostname w0: Name or service not known\r\n") == "resolve");
  CHECK(phase_of("Host key verification failed.\r\n") == "host key");
  CHECK(phase_of("w0: Permission denied (publickey,gssapi-with-mic).\r\n") == "authentication");
  CHECK(phase_of("/h/.ssh/config: line 3: Bad configuration option: foo\r\n") == "configuration");
  CHECK(phase_of("") == "ssh");

  // The first hop's refusal, not what follows from it.
  const HostFailure jump = explain_openssh(kOptions, "w1",
                                           "Welcome to the cluster\r\n"
                                           "me@bastion: Permission denied (publickey).\r\n"
                                           "Connection closed by UNKNOWN port 65535\r\n",
                                           "");
  CHECK(jump.what == "ssh: me@bastion: Permission denied (publickey).");
  CHECK_THAT(jump.fix, Contains("ssh -v w1 true"));

  const HostFailure changed = explain_openssh(
      kOptions, "w1",
      "@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
      "@@@@@@@@@@\r\nIT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n"
      "Offending ECDSA key in /h/.ssh/known_hosts:7\r\n"
      "Host key verification failed.\r\n",
      "");
  CHECK(changed.phase == "host key");
  CHECK_THAT(changed.what, Contains("HAS CHANGED") && Contains("known_hosts:7"));

  const HostFailure other = explain_openssh(kOptions, "w1", "a\r\nsomething new\r\n", "it ended");
  CHECK(other.what == "it ended: something new");
}

TEST_CASE("OpenSSH's client is asked only where it can do more", "[launcher][openssh]") {
  const testing::TemporaryFolder folder;
  const std::string key = (folder.path() / "id_ed25519").string();
  const LoginMeans plain{.methods = "publickey,password",
                         .key_types = {"ssh-ed25519", "ssh-rsa"},
                         .identity_files = {key}};
  CHECK(openssh_could_use(plain).empty());

  LoginMeans means = plain;
  means.is_rsa_refused = true;
  CHECK_THAT(openssh_could_use(means), StartsWith("an RSA key (libssh2 "));
  means = plain;
  means.methods = "publickey,gssapi-with-mic";
  CHECK(openssh_could_use(means) == "gssapi-with-mic");
  means = plain;
  means.key_types.emplace_back("sk-ssh-ed25519@openssh.com");
  CHECK(openssh_could_use(means) == "a security key");
  means.key_types = {"ssh-ed25519-cert-v01@openssh.com"};
  CHECK(openssh_could_use(means) == "a certificate of the ssh-agent");
  std::ofstream(key + "-cert.pub") << "x";
  CHECK(openssh_could_use(plain) == key + "-cert.pub");
}

/// A program in the place of ssh that does what `script` says.
OpensshOptions options_with(const testing::TemporaryFolder& folder, const std::string& script) {
  const std::filesystem::path program = folder.path() / "ssh";
  std::ofstream(program) << "#!/bin/sh\n" << script;
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  OpensshOptions options = kOptions;
  options.program = program;
  options.connect_timeout = std::chrono::seconds{1};
  return options;
}

OpensshLogin::Result log_in(asio::io_context& loop, const OpensshOptions& options) {
  std::optional<OpensshLogin::Result> result;
  std::unique_ptr<OpensshLogin> login;
  loop.restart();
  login = std::make_unique<OpensshLogin>(loop, options, "w0", std::vector<std::string>{"agent"},
                                         [&](OpensshLogin::Result r) {
                                           result = std::move(r);
                                           login.reset();  // as soon as it may be
                                         });
  while (!result)
    loop.run_one();
  return std::move(*result);
}

TEST_CASE("a login is what the program there says first, or ssh's end, or the deadline",
          "[launcher][openssh]") {
  const testing::TemporaryFolder folder;
  asio::io_context loop;
  auto result = log_in(loop, options_with(folder, "echo banner >&2; echo hello; cat"));
  REQUIRE(result.stream);
  std::string heard;
  bool ended = false;
  result.stream->listen({.on_data = [&](std::string_view bytes) { heard += bytes; },
                         .on_error_data = [](std::string_view) {},
                         .on_closed = [&](const StreamEnd&) { ended = true; }});
  result.stream->write("you\n");
  result.stream->close_input();
  while (!ended)
    loop.run_one();
  CHECK(heard == "hello\nyou\n");

  result = log_in(loop, options_with(folder, "echo 'exec: agent: not found' >&2; exit 127"));
  CHECK(result.is_program_missing);

  result = log_in(loop, options_with(folder, "echo 'w0: Permission denied (x).' >&2; exit 255"));
  REQUIRE(result.failure);
  CHECK(result.failure->phase == "authentication");
  CHECK_FALSE(result.was_turned_away);

  result = log_in(loop, options_with(folder,
                                     "echo 'kex_exchange_identification: Connection closed by "
                                     "remote host' >&2; exit 255"));
  CHECK(result.was_turned_away);

  result = log_in(loop, options_with(folder, "kill -9 $$"));
  REQUIRE(result.failure);
  CHECK(result.failure->what == "ssh was killed by signal 9");

  result = log_in(loop, options_with(folder, "echo waiting for you >&2; sleep 100"));
  REQUIRE(result.failure);
  CHECK(result.failure->what == "nothing was heard from it within 1 s: waiting for you");
  loop.run_for(std::chrono::milliseconds{50});  // nothing comes any more
}

TEST_CASE("ssh can ask nobody: it has no terminal, and no window", "[launcher][openssh]") {
  const testing::TemporaryFolder folder;
  asio::io_context loop;
  auto result = log_in(loop, options_with(folder,
                                          "(: < /dev/tty) 2>/dev/null && exit 1\n"
                                          "[ \"$SSH_ASKPASS_REQUIRE\" = never ] && echo alone"));
  CHECK(result.stream);
  CHECK(std::getenv("SSH_ASKPASS_REQUIRE") == nullptr);
}

}  // namespace
}  // namespace dstrain::launcher
