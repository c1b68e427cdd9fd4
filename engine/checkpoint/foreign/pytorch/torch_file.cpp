#include "engine/checkpoint/foreign/pytorch/torch_file.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kPickle = "/data.pkl";
constexpr std::string_view kStorages = "/data/";

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The format of torch before 1.6 is a row of pickles, of which the first is a magic number.
bool is_from_before_zip(Bytes bytes) {
  constexpr std::string_view kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  return text_of(bytes).starts_with(kMagic);
}

Bytes content(Bytes file, const ZipEntry& entry) {
  return file.subspan(static_cast<std::size_t>(entry.begin_byte),
                      static_cast<std::size_t>(entry.bytes));
}

const ZipEntry* find_entry(const std::vector<ZipEntry>& entries, std::string_view name) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const ZipEntry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

/// All entries lie in one folder, named after the file's name at the time it was written.
std::string archive_folder(const std::vector<ZipEntry>& entries) {
  std::optional<std::string> folder;
  for (const ZipEntry& entry : entries) {
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash) != kPickle) {
      continue;
    }
    if (folder) {
      throw CheckpointError(
          fmt::format("has two pickles, \"{}{}\" and \"{}\"", *folder, kPickle, entry.name));
    }
    folder = entry.name.substr(0, slash);
  }
  if (!folder) {
    throw CheckpointError("is a zip archive without data.pkl, so torch.save did not write it");
  }
  return *folder;
}

}  // namespace

TorchArchive parse_torch_archive(Bytes bytes, Checksums checksums) {
  if (is_from_before_zip(bytes)) {
    throw CheckpointError(
        "is in the format of torch before 1.6, expected a zip archive; load it with torch.load and "
        "write it again with torch.save");
  }
  const std::vector<ZipEntry> entries = read_zip_directory(bytes);
  const std::string folder = archive_folder(entries);
  if (find_entry(entries, folder + "/constants.pkl") != nullptr) {
    throw CheckpointError(
        "is a TorchScript program, expected what torch.save writes; save its state_dict()");
  }
  const ZipEntry* const byte_order = find_entry(entries, folder + "/byteorder");
  if (byte_order != nullptr && text_of(content(bytes, *byte_order)) != "little") {
    throw CheckpointError(fmt::format("has the byte order \"{:.16}\", expected little",
                                      text_of(content(bytes, *byte_order))));
  }
  const ZipEntry& pickle = *find_entry(entries, folder + std::string(kPickle));
  if (checksums == Checksums::kCompared) {
    check_crc32(bytes, pickle);
    if (byte_order != nullptr) {
      check_crc32(bytes, *byte_order);
    }
  }
  TorchArchive archive{.document = parse_pickle(content(bytes, pickle)), .storages = {}};
  const std::string storages = folder + std::string(kStorages);
  for (const ZipEntry& entry : entries) {
    if (entry.name.starts_with(storages)) {
      archive.storages.emplace(entry.name.substr(storages.size()), entry);
    }
  }
  for (const PickleStorage& storage : archive.document.storages()) {
    const auto found = archive.storages.find(storage.key);
    if (found == archive.storages.end()) {
      throw CheckpointError(
          fmt::format("has no entry \"{}{}\", which a tensor lies in", storages, storage.key));
    }
    if (found->second.bytes != storage.bytes) {
      throw CheckpointError(fmt::format("entry \"{}{}\" has {} bytes, its tensors expect {}",
                                        storages, storage.key, found->second.bytes, storage.bytes));
    }
  }
  return archive;
}

TorchFile::TorchFile(const std::filesystem::path& path)
    : file_(MappedFile::open<CheckpointError>(path.string())) {
  file_.expect_sequential_reads();
  try {
    archive_ = parse_torch_archive(file_.bytes(), Checksums::kCompared);
  } catch (const DamagedCheckpoint& error) {
    throw DamagedCheckpoint(fmt::format("{}: {}", file_.path(), error.what()));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file_.path(), error.what()));
  }
}

Bytes TorchFile::storage(const TorchTensor& tensor) const {
  const auto found = archive_.storages.find(tensor.storage_key);
  check(found != archive_.storages.end(), "{} has no storage \"{}\"", path(), tensor.storage_key);
  if (!compared_.contains(tensor.storage_key)) {
    check_crc32(file_.bytes(), found->second);
    compared_.emplace(tensor.storage_key);
  }
  return content(file_.bytes(), found->second);
}

}  // namespace dstrain
