#include "engine/checkpoint/foreign/pytorch/zip_directory.h"

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "tests/unit/checkpoint/hand_made_zip.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;

namespace {

std::vector<ZipEntry> entries_of(const std::string& file) {
  return read_zip_directory(std::as_bytes(std::span(file)));
}

void refuses(const std::string& file, const std::string& reason) {
  CHECK_THROWS_WITH(entries_of(file), Contains(reason));
  CHECK_THROWS_AS(entries_of(file), CheckpointError);
}

const ZipMember kOne{.name = "a/one", .content = "first"};
const ZipMember kTwo{.name = "a/two", .content = ""};

ZipMember changed(auto change) {
  ZipMember member = kOne;
  change(member);
  return member;
}

}  // namespace

TEST_CASE("a zip directory says where stored entries lie", "[checkpoint][pytorch]") {
  const bool is_wide = GENERATE(false, true);
  ZipMember wide = kOne;
  wide.is_wide = is_wide;
  const std::string file = zip_of({wide, kTwo}, {.is_zip64 = is_wide, .comment = "PK\x05\x06 no"});
  const auto entries = entries_of(file);
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].name == "a/one");
  CHECK(file.substr(static_cast<std::size_t>(entries[0].begin_byte),
                    static_cast<std::size_t>(entries[0].bytes)) == "first");
  CHECK(entries[1].bytes == 0);
  CHECK(entries_of(zip_of({})).empty());
}

TEST_CASE("archives that are damaged or not stored are refused", "[checkpoint][pytorch]") {
  refuses("", "is not a zip archive");
  refuses("PK\x05\x06", "is not a zip archive");
  const std::string whole = zip_of({kOne, kTwo});
  refuses(whole.substr(0, whole.size() - 1), "was cut short");
  refuses(whole + "x", "is not a zip archive");
  refuses(zip_of({kOne}, {.disk = 1}), "split over several files");
  refuses(zip_of({changed([](ZipMember& m) { m.method = 8; })}), "compressed (method 8)");
  refuses(zip_of({changed([](ZipMember& m) { m.flags = 1; })}), "encrypted");
  refuses(zip_of({kOne, kOne}), "\"a/one\" comes twice");
  refuses(zip_of({changed([](ZipMember& m) { m.local_name = "b/one"; })}), "is not at byte 0");
  refuses(zip_of({changed([](ZipMember& m) { m.offset_error = 1; })}), "is not at byte 1");
  refuses(zip_of({changed([](ZipMember& m) { m.offset_error = 1 << 30; })}),
          "reaches past the end");
  refuses(zip_of({changed([](ZipMember& m) { m.size_error = 1; })}), "reaches past the end");
  refuses(zip_of({changed([](ZipMember& m) { m.stored_error = -1; })}), "4 stored ones");
  refuses(zip_of({changed([](ZipMember& m) {
            m.is_wide = true;
            m.size_error = INT64_MIN;
          })}),
          "has 9223372036854775813 bytes");
  refuses(zip_of({changed([](ZipMember& m) { m.size_error = 3; }), kTwo}), "overlap at byte 40");
  refuses(zip_of({kOne}, {.num_entries_error = 1000}), "1001 entries in a directory of");
  refuses(zip_of({kOne, kTwo}, {.num_entries_error = -1}), "follow the directory's 1 entries");
  refuses(zip_of({kOne}, {.after_directory = "x"}), "1 bytes follow");
  refuses(zip_of({kOne}, {.begin_error = 1}), "the directory");
  refuses(zip_of({kOne}, {.begin_error = -1}), "no entry at byte 0");
  refuses(zip_of({kOne}, {.is_zip64 = true, .size_error = 1}), "zip64 end record");
  refuses(zip_of({kOne}, {.is_zip64 = true, .size_error = 1 << 30}), "the zip64 end record of 56");
  ZipMember narrow = kOne;
  narrow.size_error = 0xffffffffLL - 5;
  refuses(zip_of({narrow}), "has no zip64 size");
}

TEST_CASE("no byte of an archive can be cut or changed into a crash", "[checkpoint][pytorch]") {
  ZipMember wide = kOne;
  wide.is_wide = true;
  const std::string whole = zip_of({kTwo, wide}, {.is_zip64 = true});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string changed_file = whole;
      changed_file[at] = static_cast<char>(value);
      try {
        for (const ZipEntry& entry : entries_of(changed_file)) {
          REQUIRE(entry.begin_byte >= 0);
          REQUIRE(entry.bytes >= 0);
          REQUIRE(entry.begin_byte + entry.bytes <= static_cast<std::int64_t>(whole.size()));
        }
      } catch (const CheckpointError&) {
        continue;  // the other good end
      }
    }
    CHECK_THROWS_AS(entries_of(whole.substr(0, at)), CheckpointError);
  }
}
