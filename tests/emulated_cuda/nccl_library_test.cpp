// The library that is really there, if it is: it opens and makes ids without a GPU or a driver.
#include <cstring>

#include <catch2/catch.hpp>

#include "engine/comm/nccl.h"
#include "engine/comm/nccl_communicator.h"
#include "kernels/cuda/open_library.h"
#include "tests/harness/skip.h"

namespace dstrain::test {
namespace {

TEST_CASE("NCCL opens without a GPU and makes ids, or it is said where it was looked for",
          "[nccl]") {
  const NcclLibrary found = find_nccl();
  if (found.version.empty()) {
    CHECK_THAT(found.why_none, Catch::Contains("libnccl.so.2"));
    testing::skip(found.why_none);
    return;
  }
  CHECK_THAT(found.version, Catch::Matches("NCCL 2\\.[0-9]+\\.[0-9]+"));
  const Nccl nccl = open_nccl();
  ncclUniqueId one{};
  ncclUniqueId other{};
  nccl.check(nccl.get_unique_id(&one), "ncclGetUniqueId");
  nccl.check(nccl.get_unique_id(&other), "ncclGetUniqueId");
  CHECK(std::memcmp(one.internal, other.internal, sizeof(one.internal)) != 0);
  CHECK_THROWS_WITH(nccl.check(ncclInvalidUsage, "ncclSend"),
                    Catch::StartsWith("ncclSend failed: invalid usage"));
  CHECK_NOTHROW(nccl.check(ncclInProgress, "ncclSend"));
}

TEST_CASE("a library that is nowhere is an error that says where it was looked for", "[nccl]") {
  CHECK_THROWS_WITH(open_library("libnonesuch.so.7", "these tests"),
                    Catch::Contains("these tests want libnonesuch.so.7, which did not open") &&
                        Catch::Contains("/lib/libnonesuch.so.7: ") &&
                        Catch::Contains(DSTRAIN_CUDA_LIBRARIES "/libnonesuch.so.7: "));
  void* const libc = open_library("libc.so.6", "these tests");
  const char* (*function)() = nullptr;
  CHECK_THROWS_WITH(find_function(libc, "ncclNonesuch", function),
                    Catch::Contains("libc.so.6 has no function ncclNonesuch"));
}

}  // namespace
}  // namespace dstrain::test
