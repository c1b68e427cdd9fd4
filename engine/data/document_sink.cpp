#include "engine/data/document_sink.h"

#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"

namespace dstrain {
namespace {

struct JournalEntry {
  DocumentDigest digest;
  std::uint64_t tokens_and_split;
};
static_assert(sizeof(JournalEntry) == 24);

constexpr auto kBoth = {Split::kTrain, Split::kValidation};

std::string prefix_of(const DocumentSink::Settings& settings, Split split) {
  return settings.folder + (split == Split::kTrain ? "/train" : "/validation");
}

std::string journal_path(const std::string& folder) {
  return folder + "/documents";
}

/// Reads `entry`, whole.
bool read_entry(ByteStream& stream, JournalEntry& entry) {
  std::span<char> left(reinterpret_cast<char*>(&entry), sizeof entry);
  while (!left.empty()) {
    const std::size_t count = stream.read(left);
    if (count == 0) {
      return false;
    }
    left = left.subspan(count);
  }
  return true;
}

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  throw ConfigError(
      fmt::format("--output {}: what an interrupted prepare-data left there cannot be resumed: {}; "
                  "--overwrite starts over",
                  folder, why));
}

}  // namespace

void DocumentSink::Kept::forget_open() {
  for (OfSplit& split : splits) {
    split.tokens -= split.open_tokens;
    split.open_tokens = 0;
    split.open_content = checksum_text(checksum(""));
  }
}

DocumentSink::DocumentSink(const Settings& settings) : settings_(settings) {
  for (const Split split : kBoth) {
    at(writers_, split) =
        std::make_unique<MegatronWriter>(prefix_of(settings, split), settings.type);
  }
  journal_ = std::make_unique<OutputFile>(journal_path(settings.folder));
}

DocumentSink::DocumentSink(const Settings& settings, const Kept& kept) : settings_(settings) {
  for (const Split split : kBoth) {
    at(text_bytes_, split) = at(kept.splits, split).text_bytes;
    at(writers_, split) = std::make_unique<MegatronWriter>(
        prefix_of(settings, split), settings.type, at(kept.splits, split).tokens);
  }
  try {
    journal_ = std::make_unique<OutputFile>(
        journal_path(settings.folder),
        kept.documents * static_cast<std::int64_t>(sizeof(JournalEntry)));
    restore_documents(kept.documents);
    for (const Split split : kBoth) {
      at(writers_, split)->restore(at(kept.splits, split).open_tokens);
    }
  } catch (const ReadFailure& failure) {
    refuse(settings.folder, failure.reason);
  }
  for (const Split split : kBoth) {
    if (writer(split).content() != at(kept.splits, split).content ||
        writer(split).open_content() != at(kept.splits, split).open_content) {
      refuse(settings.folder, fmt::format("the tokens in {}.bin.partial are not those that were "
                                          "written",
                                          prefix_of(settings, split)));
    }
  }
  if (checksum_text(journal_hash_.value()) != kept.journal) {
    refuse(settings.folder, "documents.partial is damaged");
  }
}

void DocumentSink::restore_documents(std::int64_t documents) {
  // The file is read through a descriptor of its own: the other one writes.
  const auto stream =
      ByteStream::open(partial_path(journal_path(settings_.folder)), Compression::kNone);
  for (JournalEntry entry{}; documents_ < documents; ++documents_) {
    if (!read_entry(*stream, entry)) {
      refuse(settings_.folder, "documents.partial is cut short");
    }
    journal_hash_.add_value(entry);
    MegatronWriter& into = *writers_[entry.tokens_and_split & 1U];
    into.restore(static_cast<std::int64_t>(entry.tokens_and_split >> 1));
    into.end_document();
    if (settings_.deduplicate) {
      seen_.insert(entry.digest);
    }
  }
}

void DocumentSink::append(Split split, std::span<const std::int32_t> ids) {
  writer(split).append(ids);
}

void DocumentSink::discard_document(Split split) {
  settings_.before_discard();
  writer(split).discard_document();
}

bool DocumentSink::end_document(Split split,
                                const DocumentDigest& digest,
                                std::int64_t text_bytes) {
  if (settings_.deduplicate && !seen_.insert(digest)) {
    discard_document(split);
    return false;
  }
  close_document(split, digest, text_bytes);
  return true;
}

bool DocumentSink::add_document(Split split,
                                std::span<const std::int32_t> ids,
                                const DocumentDigest& digest,
                                std::int64_t text_bytes) {
  if (settings_.deduplicate && !seen_.insert(digest)) {
    return false;
  }
  append(split, ids);
  close_document(split, digest, text_bytes);
  return true;
}

bool DocumentSink::add_sample(Split split,
                              std::span<const std::int32_t> ids,
                              const SampleParts& parts,
                              const DocumentDigest& digest,
                              std::int64_t text_bytes) {
  if (settings_.deduplicate && !seen_.insert(digest)) {
    return false;
  }
  writer(split).append_sample(ids, parts);
  ++documents_;
  at(text_bytes_, split) += text_bytes;
  return true;
}

void DocumentSink::close_document(Split split,
                                  const DocumentDigest& digest,
                                  std::int64_t text_bytes) {
  MegatronWriter& into = writer(split);
  if (settings_.append_eod) {
    into.append(std::span(&*settings_.append_eod, 1));
  }
  const JournalEntry entry{digest, (static_cast<std::uint64_t>(into.open_tokens()) << 1U) |
                                       static_cast<std::uint64_t>(split)};
  into.end_document();
  journal_->append_value(entry);
  journal_hash_.add_value(entry);
  ++documents_;
  at(text_bytes_, split) += text_bytes;
}

DocumentSink::Kept DocumentSink::keep() {
  Kept kept{.documents = documents_, .journal = checksum_text(journal_hash_.value())};
  journal_->keep();
  for (const Split split : kBoth) {
    MegatronWriter& from = writer(split);
    from.keep();
    at(kept.splits, split) = {.tokens = from.num_tokens(),
                              .open_tokens = from.open_tokens(),
                              .content = from.content(),
                              .open_content = from.open_content(),
                              .text_bytes = text_bytes(split)};
  }
  return kept;
}

void DocumentSink::let_go() {
  journal_->let_go();
  for (const auto& one : writers_) {
    one->let_go();
  }
}

bool DocumentSink::is_empty() const {
  return documents_ == 0 && writer(Split::kTrain).num_tokens() == 0 &&
         writer(Split::kValidation).num_tokens() == 0;
}

}  // namespace dstrain
