#include "launcher/ssh/known_hosts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/regular_file.h"
#include "launcher/ssh/host_pattern.h"
#include "launcher/ssh/ssh_encoding.h"

namespace dstrain::launcher {
namespace {

/// Takes the next word of a line off its front.
std::string_view take_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r"), rest.size()));
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r"));
  rest.remove_prefix(word.size());
  return word;
}

/// One hashed name, "|1|salt|digest": HMAC-SHA-1 of the name under the salt, both in base64.
class HashedName {
 public:
  explicit HashedName(std::string_view hashed) {
    constexpr std::string_view kKind = "|1|";
    const std::size_t middle = hashed.find('|', kKind.size());
    if (!hashed.starts_with(kKind) || middle == std::string_view::npos) return;
    salt_ = from_base64(hashed.substr(kKind.size(), middle - kKind.size()));
    digest_ = from_base64(hashed.substr(middle + 1));
  }

  [[nodiscard]] bool is(std::string_view name) const {
    std::array<char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    HMAC(EVP_sha1(), salt_.data(), static_cast<int>(salt_.size()),
         reinterpret_cast<const unsigned char*>(name.data()), name.size(),
         reinterpret_cast<unsigned char*>(digest.data()), &size);
    return size > 0 && digest_ == std::string_view(digest.data(), size);
  }

 private:
  std::string salt_;
  std::string digest_;
};

bool same_key(std::string_view a, std::string_view b) {
  const auto unpadded = [](std::string_view text) {
    return text.substr(0, text.find_last_not_of('=') + 1);
  };
  return unpadded(a) == unpadded(b);
}

/// "w0" of "[w0]:2222"; empty if it has no port.
std::string without_port(const std::string& name) {
  const size_t close = name.rfind("]:");
  return name.starts_with('[') && close != std::string::npos ? name.substr(1, close - 1)
                                                             : std::string();
}

}  // namespace

HostKey HostKey::from_blob(std::string_view blob) {
  std::string_view rest = blob;
  return {.type = std::string(take_ssh_string(rest)), .base64 = to_base64(blob)};
}

struct KnownHosts::Entry {
  std::string names{};  ///< "w0,w*,!w3"; empty if hashed
  std::optional<HashedName> hashed{};
  bool revoked = false;
  HostKey key{};
  std::string where{};

  [[nodiscard]] bool is_of(const std::string& name) const {
    return hashed ? hashed->is(name) : matches_comma_list(name, names);
  }
};

KnownHosts::KnownHosts(std::vector<std::string> files, std::size_t num_writable) {
  if (num_writable > 0 && !files.empty()) writable_ = files.front();
  for (const std::string& file : files)
    read(file);
}

KnownHosts::~KnownHosts() = default;

void KnownHosts::read(const std::string& path) {
  std::istringstream file(read_regular_file(path, kMostHandWrittenBytes).text);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::string_view rest = line;
    std::string_view names = take_word(rest);
    if (names.empty() || names.starts_with('#')) continue;
    auto entry = std::make_unique<Entry>();
    if (names.starts_with('@')) {
      if (names == "@cert-authority") authorities_.emplace_back(take_word(rest));
      if (names != "@revoked") continue;
      entry->revoked = true;
      names = take_word(rest);
    }
    entry->key.type = take_word(rest);
    entry->key.base64 = take_word(rest);
    entry->where = fmt::format("{}:{}", path, number);
    if (entry->key.base64.empty()) continue;  // not a line of this format: it makes nothing known
    if (names.starts_with('|')) {
      entry->hashed.emplace(names);
    } else {
      entry->names = names;
    }
    entries_.push_back(std::move(entry));
  }
}

KnownHosts::Found KnownHosts::entries_of(const std::string& name) const {
  Found found;
  const auto add = [&](const std::string& wanted) {
    for (const auto& entry : entries_) {
      if (entry->is_of(wanted)) found.entries.push_back(entry.get());
    }
  };
  add(name);
  found.num_own = found.entries.size();
  if (const std::string bare = without_port(name); !bare.empty()) add(bare);
  return found;
}

HostKeyVerdict KnownHosts::judge(const std::string& name, const HostKey& key) const {
  using Kind = HostKeyVerdict::Kind;
  // A host known without the port is the same host if it has the same key; another key there
  // says nothing about this port. OpenSSH does the same.
  const Found found = entries_of(name);
  const Entry* known = nullptr;
  for (const Entry* const entry : found.entries) {
    if (entry->key.type != key.type || !same_key(entry->key.base64, key.base64)) continue;
    if (entry->revoked) return {Kind::kRevoked, entry->where, entry->key.type};
    if (known == nullptr) known = entry;
  }
  if (known != nullptr) return {Kind::kKnown, known->where, known->key.type};
  // A known key of the same type, if there is one. A key of another type is a change as well: the
  // host was asked for the known types first, and no longer has any of them.
  const Entry* old = nullptr;
  for (const Entry* const entry : std::span(found.entries).first(found.num_own)) {
    if (entry->revoked) continue;
    if (old == nullptr || (old->key.type != key.type && entry->key.type == key.type)) old = entry;
  }
  if (old != nullptr) return {Kind::kChanged, old->where, old->key.type};
  return {};
}

bool KnownHosts::has_authority(const std::string& name) const {
  return std::any_of(authorities_.begin(), authorities_.end(),
                     [&](const std::string& names) { return matches_comma_list(name, names); });
}

std::vector<std::string> KnownHosts::key_types(const std::string& name) const {
  std::vector<std::string> types;
  for (const Entry* const entry : entries_of(name).entries) {
    if (entry->revoked) continue;
    if (std::find(types.begin(), types.end(), entry->key.type) == types.end()) {
      types.push_back(entry->key.type);
    }
  }
  return types;
}

namespace {

/// Appends a line of its own, and syncs it to the disk. Throws std::system_error.
void append_line(const std::string& path, const std::string& line) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path); };
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::exists(folder)) {
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  }
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) fail();
  struct stat state {};
  if (fstat(file.get(), &state) != 0) fail();
  std::string text = line + "\n";
  char last = '\n';
  if (S_ISREG(state.st_mode) && state.st_size > 0 &&
      pread(file.get(), &last, 1, state.st_size - 1) != 1) {
    fail();
  }
  if (last != '\n') text.insert(0, "\n");
  // The line is written in one piece, so that launchers that do the same at the same time do not
  // mix their lines.
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail();
  if (S_ISREG(state.st_mode) && fsync(file.get()) != 0) fail();
}

}  // namespace

std::string KnownHosts::add(const std::string& name, const HostKey& key) {
  auto entry = std::make_unique<Entry>();
  entry->names = name;
  entry->key = key;
  entry->where = writable_.empty() ? "accepted in this run" : writable_;
  entries_.push_back(std::move(entry));
  if (writable_.empty()) return {};
  try {
    append_line(writable_, fmt::format("{} {} {}", name, key.type, key.base64));
  } catch (const std::system_error& error) {
    return fmt::format("the key of {} is accepted for this run only: {}", name, error.what());
  }
  return {};
}

}  // namespace dstrain::launcher
