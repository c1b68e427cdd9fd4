// What an OpenSSH configuration means for a host, according to its manual (ssh_config(5)).
#include "launcher/ssh/ssh_config.h"

#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "launcher/ssh/host_pattern.h"
#include "launcher/ssh/ssh_target.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

/// A home with ~/.ssh/config, and a system's file.
struct Home {
  testing::TemporaryFolder folder;
  SshUser user{.home = folder.path(), .name = "me", .hostname = "here", .agent_socket = "/agent"};

  explicit Home(const std::string& config, const std::string& system = "") {
    std::filesystem::create_directories(folder.path() / ".ssh");
    write(".ssh/config", config);
    write("ssh_config", system);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text;
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path() / name; }
  [[nodiscard]] SshHostSettings settings(const std::string& written) const {
    return SshConfig(user, path(".ssh/config"), path("ssh_config")).settings_for(written);
  }
};

TEST_CASE("a host of a hostfile is taken apart", "[launcher][ssh]") {
  CHECK(parse_ssh_target("w0") == SshTarget{"", "w0", 0});
  CHECK(parse_ssh_target("ann@w0") == SshTarget{"ann", "w0", 0});
  CHECK(parse_ssh_target("ann@corp@w0:22") == SshTarget{"ann@corp", "w0", 22});
  CHECK(parse_ssh_target("w0.example.com:2222") == SshTarget{"", "w0.example.com", 2222});
  CHECK(parse_ssh_target("10.0.0.7:65535") == SshTarget{"", "10.0.0.7", 65535});
  CHECK(parse_ssh_target("fd00::7") == SshTarget{"", "fd00::7", 0});
  CHECK(parse_ssh_target("::1") == SshTarget{"", "::1", 0});
  CHECK(parse_ssh_target("[fd00::7]") == SshTarget{"", "fd00::7", 0});
  CHECK(parse_ssh_target("u@[fe80::1%eth0]:2222") == SshTarget{"u", "fe80::1%eth0", 2222});
  for (const char* const wrong :
       {"", "@w0", "w0:", "w0:0", "w0:65536", "w0:22x", "w0:-1", "[::1", "[::1]22", "[]:22", "u@",
        "-oProxyCommand=x", "u@-x", "w0;reboot", "$(x)", "a b", "[a]b]:1"}) {
    INFO(wrong);
    CHECK_THROWS_WITH(parse_ssh_target(wrong), Contains("expected [USER@]HOST[:PORT]"));
  }
}

TEST_CASE("patterns match as OpenSSH's do", "[launcher][ssh]") {
  CHECK(matches_pattern("w12", "w*"));
  CHECK(matches_pattern("W12", "w?2"));
  CHECK(matches_pattern("", "*"));
  CHECK(matches_pattern("a.b.c", "*.c"));
  CHECK(matches_pattern("aXbXc", "a*b*c"));
  CHECK_FALSE(matches_pattern("w12", "w?"));
  CHECK_FALSE(matches_pattern("w12", "w"));
  CHECK_FALSE(matches_pattern("", "?"));
  CHECK_FALSE(matches_pattern(std::string(3000, 'a'), std::string(1000, '*') + "b"));
  CHECK(matches_comma_list("w1", "x,w*,!w2"));
  CHECK_FALSE(matches_comma_list("w2", "x,w*,!w2"));
  CHECK_FALSE(matches_comma_list("w1", "!w2"));  // nothing that matches
  CHECK_FALSE(matches_comma_list("w1", ",,"));
}

TEST_CASE("without any file a host is what its name says", "[launcher][ssh]") {
  const Home home("");
  const SshHostSettings host = home.settings("w0");
  CHECK(host.written == "w0");
  CHECK(host.host_name == "w0");
  CHECK(host.port == 22);
  CHECK(host.user == "me");
  CHECK(host.agent_socket == "/agent");
  CHECK(host.identity_files == std::vector<std::string>{home.path(".ssh/id_ed25519"),
                                                        home.path(".ssh/id_ecdsa"),
                                                        home.path(".ssh/id_rsa")});
  CHECK(host.known_hosts.at(0) == home.path(".ssh/known_hosts"));
  CHECK(host.user_known_hosts == 2);
  CHECK(host.host_key_policy == HostKeyPolicy::kStrict);
  CHECK_FALSE(host.connect_timeout);
  CHECK(host.known_as() == "w0");
  CHECK(home.settings("w0:2222").known_as() == "[w0]:2222");
}

TEST_CASE("of each directive the first value that applies counts", "[launcher][ssh]") {
  const Home home(
      "user top\r\n"
      "Host w? !w0\n"
      "  Port 2200\n"
      "  HostName %h.never\n"
      "Host w*   # all of them\n"
      "\tPort=2201\n"
      "  User never\n"
      "  HostName = \"%h.cluster.example\"\n"
      "  ConnectTimeout 7\n"
      "  IdentityFile ~/.ssh/first\n"
      "Host *\n"
      "  IdentityFile \"%d/.ssh/second of %r\"\n"
      "  IdentityFile ~/.ssh/first\n"
      "  ForwardAgent yes\n"
      "  Ciphers aes256-ctr\n",
      "Host w0\n  AddressFamily inet6\n  Port 1\n  IdentityFile /system/%n-%h-%p-%u-%l-%%\n");
  const SshHostSettings w0 = home.settings("w0");
  CHECK(w0.user == "top");
  CHECK(w0.port == 2201);  // "!w0" takes it out of the first block
  CHECK(home.settings("w1").port == 2200);
  CHECK(w0.host_name == "w0.cluster.example");
  CHECK(w0.family == AddressFamily::kIpv6);
  CHECK(w0.connect_timeout == std::chrono::seconds{7});
  CHECK(w0.identity_files ==
        std::vector<std::string>{home.path(".ssh/first"), home.path(".ssh/second of top"),
                                 "/system/w0-w0.cluster.example-2201-me-here-%"});
  CHECK(home.settings("x").port == 22);
}

TEST_CASE("what the hostfile says comes before what the configuration says", "[launcher][ssh]") {
  const Home home("Host w0\n User conf\n Port 2200\nMatch user ann\n HostKeyAlias anns\n");
  const SshHostSettings host = home.settings("ann@w0:2299");
  CHECK(host.user == "ann");
  CHECK(host.port == 2299);
  CHECK(host.host_key_alias == "anns");
  CHECK(host.known_as() == "anns");
  CHECK(home.settings("w0").host_key_alias.empty());
}

TEST_CASE("Match applies by host, user and all, and names what it cannot decide",
          "[launcher][ssh]") {
  const Home home(
      "Host alias\n HostName real.example\n"
      "Match host *.example originalhost alias\n Port 1\n"
      "Match host *.example\n Port 2\n"
      "Match localuser me,you !user root\n User matched\n"
      "Match canonical\n Port 3\n"
      "Match originalhost other exec \"true\"\n Port 4\n"
      "Match all\n Port 5\n");
  CHECK(home.settings("alias").port == 1);
  CHECK(home.settings("x.example").port == 2);
  CHECK(home.settings("y").port == 5);
  CHECK(home.settings("y").user == "matched");
  CHECK_THROWS_WITH(home.settings("other"),
                    Contains(".ssh/config:11: Match exec is not supported"));
}

TEST_CASE("included files apply within the block that includes them", "[launcher][ssh]") {
  const Home home(
      "Host w*\n  Include conf.d/*.conf missing\n  Port 3\n"
      "Include ~/more\n"
      "Host last\n  Port 9\n");
  std::filesystem::create_directories(home.path(".ssh/conf.d"));
  home.write(".ssh/conf.d/a.conf", "User a\nHost w1 x\n  Port 1\n");
  home.write(".ssh/conf.d/b.conf", "User b\nPort 2\n");
  home.write("more", "Host x\n  Port 4\n");
  CHECK(home.settings("w1").port == 1);
  CHECK(home.settings("w2").port == 2);  // b.conf is in the block again, not under a.conf's Host
  CHECK(home.settings("w2").user == "a");
  CHECK(home.settings("x").port == 22);  // "Include ~/more" stands within Host w*
  CHECK(home.settings("last").port == 9);

  home.write(".ssh/conf.d/a.conf", "Include a.conf conf.d/a.conf\n");
  CHECK_THROWS_WITH(home.settings("w1"), Contains("a.conf:1: files include each other"));
}

TEST_CASE("known hosts, host key policy and agent can be set", "[launcher][ssh]") {
  const Home home(
      "Host a\n UserKnownHostsFile /x ~/y\n GlobalKnownHostsFile none\n IdentityAgent none\n"
      " StrictHostKeyChecking accept-new\n"
      "Host b\n UserKnownHostsFile none\n StrictHostKeyChecking no\n IdentityAgent ~/agent\n"
      " IdentityFile none\n IdentitiesOnly yes\n"
      "Host c\n StrictHostKeyChecking ask\n IdentityAgent SSH_AUTH_SOCK\n BindAddress 10.0.0.1\n");
  const SshHostSettings a = home.settings("a");
  CHECK(a.known_hosts == std::vector<std::string>{"/x", home.path("y")});
  CHECK(a.user_known_hosts == 2);
  CHECK(a.agent_socket.empty());
  CHECK(a.host_key_policy == HostKeyPolicy::kAcceptNew);
  const SshHostSettings b = home.settings("b");
  CHECK(b.user_known_hosts == 0);
  CHECK(b.host_key_policy == HostKeyPolicy::kAcceptNew);
  CHECK(b.agent_socket == home.path("agent"));
  CHECK(b.identity_files.empty());
  CHECK(b.identities_only);
  CHECK(home.settings("c").host_key_policy == HostKeyPolicy::kStrict);
  CHECK(home.settings("c").agent_socket == "/agent");
  CHECK(home.settings("c").bind_address == "10.0.0.1");
}

TEST_CASE("a directive that matters and is not honoured is an error where it applies",
          "[launcher][ssh]") {
  const auto [directive, name] = GENERATE(
      table<std::string, std::string>({{"ProxyJump bastion", "ProxyJump"},
                                       {"proxycommand=ssh -W %h:%p bastion", "ProxyCommand"},
                                       {"CertificateFile ~/c", "CertificateFile"},
                                       {"PKCS11Provider /lib/x.so", "PKCS11Provider"},
                                       {"KnownHostsCommand /bin/x", "KnownHostsCommand"},
                                       {"CanonicalizeHostname yes", "CanonicalizeHostname"},
                                       {"PubkeyAuthentication no", "PubkeyAuthentication"}}));
  const Home home("Host direct\n ProxyJump none\nHost *.far direct\n " + directive + "\n");
  CHECK_THROWS_WITH(home.settings("x.far"), StartsWith(home.path(".ssh/config:4: ") + name) &&
                                                Contains("applies to host x.far"));
  try {
    (void)home.settings("x.far");
  } catch (const SshConfigError& error) {  // OpenSSH's client would do it
    CHECK_THAT(error.openssh_for(), StartsWith(name) && EndsWith(home.path(".ssh/config:4)")));
  }
  CHECK_NOTHROW(home.settings("near"));
  if (name == "ProxyJump") CHECK_NOTHROW(home.settings("direct"));
}

TEST_CASE("a wrong line is named with its file and number", "[launcher][ssh]") {
  const auto [line, message] = GENERATE(table<std::string, std::string>(
      {{"Port", "has no value"},
       {"Port =", "has no value"},
       {"=", "has no value"},
       {"Port 0", "\"0\": expected a port"},
       {"Port 99999", "expected a port"},
       {"Port 22a", "expected a port"},
       {"User \"open", "never closed"},
       {"IdentitiesOnly maybe", "expected yes or no"},
       {"StrictHostKeyChecking perhaps", "expected yes, ask, accept-new or no"},
       {"AddressFamily inet7", "expected any, inet or inet6"},
       {"ConnectTimeout soon", "expected seconds"},
       {"IdentityFile ~/%q", "after % only"},
       {"IdentityFile ~/%", "after % only"},
       {"IdentityFile ${DSTRAIN_NO_SUCH_VARIABLE}/x", "DSTRAIN_NO_SUCH_VARIABLE is not set"},
       {"HostName %x", "\"%x\": after % only %, h are known here"},
       {"Match user", "Match user needs a pattern"}}));
  const Home home("\n# comment\n  " + line + "\n");
  INFO(line);
  CHECK_THROWS_WITH(home.settings("w0"),
                    StartsWith(home.path(".ssh/config:3: ")) && Contains(message));
}

TEST_CASE("a parenthesis for a keyword ends no block", "[launcher][ssh]") {
  for (const char* const line : {") x", "( x", "(=x", ")=x"}) {
    const Home home(std::string("Host other\n") + line + "\nUser mallory\nHost *\nUser bob\n");
    INFO(line);
    CHECK(home.settings("w0").user == "bob");
  }
}

TEST_CASE("words of a configuration are cut as OpenSSH cuts them", "[launcher][ssh]") {
  const auto words = [](const char* line) { return parse_ssh_config_line(line, "f:1").arguments; };
  using Words = std::vector<std::string>;
  CHECK(words("Host a b\tc # d") == Words{"a", "b", "c"});
  CHECK(words("Host \"a b\" 'c d' e\\\"f") == Words{"a b", "c d", "e\"f"});
  CHECK(words("Host a\"b c\"d") == Words{"ab cd"});
  CHECK(words("User=x") == Words{"x"});
  CHECK(words("User \"\"") == Words{""});
  CHECK(words("Host a#b") == Words{"a#b"});
  CHECK(words("   # Host a").empty());
  CHECK(parse_ssh_config_line("  HOSTNAME x", "f:1").keyword == "hostname");
}

}  // namespace
}  // namespace dstrain::launcher
