#include "launcher/ssh/key_file.h"

#include <sstream>
#include <string_view>

#include "engine/base/regular_file.h"
#include "launcher/ssh/ssh_encoding.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kOpensshBegin = "-----BEGIN OPENSSH PRIVATE KEY-----";
constexpr std::string_view kOpensshMagic{"openssh-key-v1\0", 15};

/// magic, cipher, key derivation, its options, number of keys, public key, …
void inspect_openssh_format(std::string_view text, KeyFile& key) {
  text.remove_prefix(kOpensshBegin.size());
  const std::string bytes = from_base64(text.substr(0, text.find('-')));
  std::string_view rest = bytes;
  if (!rest.starts_with(kOpensshMagic)) {
    key.state = KeyFile::State::kNotAKey;
    key.problem = "is damaged";
    return;
  }
  rest.remove_prefix(kOpensshMagic.size());
  const std::string_view cipher = take_ssh_string(rest);
  take_ssh_string(rest);
  take_ssh_string(rest);
  take_ssh_number(rest);
  key.public_blob = take_ssh_string(rest);
  if (cipher != "none") key.state = KeyFile::State::kEncrypted;
}

}  // namespace

KeyFile inspect_key_file(const std::string& path) {
  KeyFile key;
  const FileText file = read_regular_file(path, kMostHandWrittenBytes);
  if (file.is_missing) return key;
  if (!file.why.empty()) {
    key.state = KeyFile::State::kUnreadable;
    key.problem = "cannot be read";
    return key;
  }
  const std::string_view text = file.text;
  key.state = KeyFile::State::kUsable;
  if (text.starts_with(kOpensshBegin)) {
    inspect_openssh_format(text, key);
  } else if (text.find("PRIVATE KEY-----") == std::string_view::npos) {
    key.state = KeyFile::State::kNotAKey;
    key.problem = text.starts_with("ssh-") || text.starts_with("ecdsa-")
                      ? "is the public half of a key; name the file without .pub"
                      : "is not a private key";
  } else if (text.find("ENCRYPTED") != std::string_view::npos) {
    key.state = KeyFile::State::kEncrypted;
  }
  if (key.state == KeyFile::State::kEncrypted) key.problem = "has a passphrase";
  if (key.public_blob.empty()) {
    std::string type, base64;
    std::istringstream(read_regular_file(path + ".pub", kMostHandWrittenBytes).text) >> type >>
        base64;
    key.public_blob = from_base64(base64);
  }
  return key;
}

}  // namespace dstrain::launcher
