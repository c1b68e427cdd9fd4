// Which host keys are trusted, with known_hosts files made by OpenSSH's own ssh-keygen where it
// has a say (hashed names).
#include "launcher/ssh/known_hosts.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>

#include "launcher/ssh/ssh_encoding.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Kind = HostKeyVerdict::Kind;

/// A key as ssh-keygen writes it, with the last byte as said.
HostKey ed25519(char last) {
  std::string blob("\0\0\0\x0bssh-ed25519\0\0\0\x20", 19);
  blob += std::string(31, 'k') + last;
  return HostKey::from_blob(blob);
}
HostKey ecdsa() {
  return HostKey::from_blob(
      std::string("\0\0\0\x13"
                  "ecdsa-sha2-nistp256xyz",
                  26));
}
std::string line(const std::string& names, const HostKey& key) {
  return fmt::format("{} {} {} a comment\n", names, key.type, key.base64);
}

struct Files {
  testing::TemporaryFolder folder;
  [[nodiscard]] std::string path(const std::string& name = "known_hosts") const {
    return folder.path() / name;
  }
  std::string write(const std::string& text, const std::string& name = "known_hosts") const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
};

TEST_CASE("a key is read from the wire as known_hosts has it", "[launcher][ssh]") {
  CHECK(ed25519('a').type == "ssh-ed25519");
  CHECK(ed25519('a').base64.starts_with("AAAAC3NzaC1lZDI1NTE5AAAAI"));
  CHECK(ecdsa().type == "ecdsa-sha2-nistp256");
  CHECK(HostKey::from_blob("").type.empty());
  CHECK(HostKey::from_blob(std::string("\xff\xff\xff\xff", 4)).type.empty());
  CHECK(to_base64("") == "");
  CHECK(to_base64("f") == "Zg==");
  CHECK(to_base64("fo") == "Zm8=");
  CHECK(to_base64("foobar") == "Zm9vYmFy");
  CHECK(to_base64("\xff\xfe\xfd") == "//79");
  CHECK(from_base64("Zm8=") == "fo");
  CHECK(from_base64("Zm9v\nYmFy\n") == "foobar");
  CHECK(from_base64("Zm9v!") == "");
}

TEST_CASE("a key is known, unknown or changed, with its line", "[launcher][ssh]") {
  const Files files;
  const KnownHosts known({files.write("# comment\n\nrubbish\n" + line("w0,10.0.0.1", ed25519('a')) +
                                      line("w*,!w3", ed25519('b'))),
                          "/no/such/file"});
  CHECK(known.judge("w0", ed25519('a')).kind == Kind::kKnown);
  CHECK(known.judge("W0", ed25519('a')).where == files.path() + ":4");
  CHECK(known.judge("10.0.0.1", ed25519('a')).kind == Kind::kKnown);
  CHECK(known.judge("w0", ed25519('b')).kind == Kind::kKnown);  // by the wildcard
  CHECK(known.judge("w1", ed25519('b')).kind == Kind::kKnown);
  CHECK(known.judge("w3", ed25519('b')).kind == Kind::kUnknown);
  CHECK(known.judge("x", ed25519('a')).kind == Kind::kUnknown);
  const HostKeyVerdict changed = known.judge("w0", ed25519('c'));
  CHECK(changed.kind == Kind::kChanged);
  CHECK(changed.where == files.path() + ":4");
  // A type that was not known before, from a host of which others are.
  CHECK(known.judge("w0", ecdsa()).kind == Kind::kChanged);
  CHECK(known.key_types("w0") == std::vector<std::string>{"ssh-ed25519"});
  CHECK(known.key_types("x").empty());
}

TEST_CASE("of an old key the line of the same type is named", "[launcher][ssh]") {
  const Files files;
  const KnownHosts known({files.write(line("w0", ecdsa()) + line("w0", ed25519('a')))});
  CHECK(known.judge("w0", ed25519('b')).where == files.path() + ":2");
  CHECK(known.key_types("w0") == std::vector<std::string>{"ecdsa-sha2-nistp256", "ssh-ed25519"});
}

TEST_CASE("another port is another host, unless it has the same key", "[launcher][ssh]") {
  const Files files;
  const KnownHosts known(
      {files.write(line("[w0]:2222,[fd00::1]:2222", ed25519('a')) + line("w0", ed25519('b')))});
  CHECK(known.judge("[w0]:2222", ed25519('a')).kind == Kind::kKnown);
  CHECK(known.judge("[fd00::1]:2222", ed25519('a')).kind == Kind::kKnown);
  CHECK(known.judge("[w0]:2222", ed25519('b')).kind == Kind::kKnown);
  CHECK(known.judge("[w0]:2222", ed25519('c')).kind == Kind::kChanged);
  CHECK(known.judge("[w0]:2223", ed25519('b')).kind == Kind::kKnown);
  CHECK(known.judge("[w0]:2223", ed25519('c')).kind == Kind::kUnknown);
  CHECK(known.judge("w0", ed25519('a')).kind == Kind::kChanged);
}

TEST_CASE("hashed names are recognised", "[launcher][ssh]") {
  const Files files;
  files.write(line("w0", ed25519('a')) + line("[w1]:2222", ed25519('b')));
  const std::string hash = fmt::format("ssh-keygen -q -H -f {} >/dev/null 2>&1", files.path());
  REQUIRE(std::system(hash.c_str()) == 0);
  // Hashes end with "=", so that none of them, which differ every time, has "w0 " in it.
  REQUIRE_THAT(files.folder.read("known_hosts"), Contains("|1|") && !Contains("w0 "));
  const KnownHosts known({files.path()});
  CHECK(known.judge("w0", ed25519('a')).kind == Kind::kKnown);
  CHECK(known.judge("w0", ed25519('b')).kind == Kind::kChanged);
  CHECK(known.judge("w0", ed25519('b')).where == files.path() + ":1");
  CHECK(known.judge("[w1]:2222", ed25519('b')).kind == Kind::kKnown);
  CHECK(known.judge("w1", ed25519('b')).kind == Kind::kUnknown);
  CHECK(known.judge("w2", ed25519('b')).kind == Kind::kUnknown);
}

TEST_CASE("a revoked key is refused even where it is known; authorities are passed over",
          "[launcher][ssh]") {
  const Files files;
  const KnownHosts known({files.write(line("w0", ed25519('a')) + line("w1", ed25519('b')) +
                                      line("@revoked *", ed25519('a')) +
                                      line("@cert-authority w*,!w5", ed25519('d')))});
  CHECK(known.judge("w0", ed25519('a')).kind == Kind::kRevoked);
  CHECK(known.judge("w0", ed25519('a')).where == files.path() + ":3");
  CHECK(known.judge("w1", ed25519('b')).kind == Kind::kKnown);
  CHECK(known.judge("w2", ed25519('d')).kind == Kind::kUnknown);
  CHECK(known.judge("w2", ed25519('a')).kind == Kind::kRevoked);
  CHECK(known.key_types("w2").empty());
  CHECK(known.has_authority("w2"));
  CHECK_FALSE(known.has_authority("w5"));
  CHECK_FALSE(known.has_authority("x"));
}

TEST_CASE("an accepted key is known from then on, once, in a file for the user alone",
          "[launcher][ssh]") {
  const Files files;
  const std::string path = files.path("new/known_hosts");
  {
    KnownHosts known({path, "/no/such/file"}, 1);
    CHECK(known.judge("w0", ed25519('a')).kind == Kind::kUnknown);
    CHECK(known.add("w0", ed25519('a')).empty());
    CHECK(known.add("[w1]:2222", ed25519('a')).empty());
    CHECK(known.judge("w0", ed25519('a')).kind == Kind::kKnown);
    CHECK(known.judge("w0", ed25519('b')).kind == Kind::kChanged);
  }
  struct stat state {};
  REQUIRE(stat(path.c_str(), &state) == 0);
  CHECK((state.st_mode & 0777) == 0600);
  REQUIRE(stat(files.path("new").c_str(), &state) == 0);
  CHECK((state.st_mode & 0777) == 0700);
  const KnownHosts again({path});
  CHECK(again.judge("w0", ed25519('a')).kind == Kind::kKnown);
  CHECK(again.judge("[w1]:2222", ed25519('a')).kind == Kind::kKnown);
  const std::string text = files.folder.read("new/known_hosts");
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("a file whose last line is not ended keeps that line", "[launcher][ssh]") {
  const Files files;
  std::string text = line("w0", ed25519('a'));
  text.pop_back();
  KnownHosts known({files.write(text)}, 1);
  CHECK(known.add("w1", ed25519('b')).empty());
  const KnownHosts again({files.path()});
  CHECK(again.judge("w0", ed25519('a')).kind == Kind::kKnown);
  CHECK(again.judge("w1", ed25519('b')).kind == Kind::kKnown);
}

TEST_CASE("a key that cannot be written down is said to hold for this run only",
          "[launcher][ssh]") {
  KnownHosts known({"/proc/no/known_hosts"}, 1);
  CHECK_THAT(known.add("w0", ed25519('a')), Contains("for this run only"));
  CHECK(known.judge("w0", ed25519('a')).kind == Kind::kKnown);
  KnownHosts nowhere({}, 0);
  CHECK(nowhere.add("w0", ed25519('a')).empty());
}

}  // namespace
}  // namespace dstrain::launcher
