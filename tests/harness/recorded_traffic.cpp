#include "tests/harness/recorded_traffic.h"

#include <algorithm>

#include <fmt/format.h>

namespace dstrain::test {
namespace {

/// Of rows on their way from experts the number is known only when they are routed.
std::string text(const CollectiveLog::Entry& entry) {
  if (entry.purpose == Purpose::kExperts && entry.dtype != DType::kI32) {
    return fmt::format("{}({}, {}) in \"{}\"", name_of(entry.op), name_of(entry.dtype),
                       name_of(entry.purpose), entry.group);
  }
  return fmt::format("{}({}[{}], {}) in \"{}\"", name_of(entry.op), name_of(entry.dtype),
                     entry.elements, name_of(entry.purpose), entry.group);
}

}  // namespace

std::string difference(const RunPlan& plan,
                       const std::vector<CollectiveLog::Entry>& recorded,
                       GradientTravel travel) {
  std::vector<std::string> planned;
  for (const Transfer& transfer : plan.traffic_of(travel).transfers()) {
    const GroupPlan* const group = find_group(plan.groups, transfer.group);
    planned.push_back(text({.op = transfer.op,
                            .group = group == nullptr ? "no group" : group->name,
                            .purpose = transfer.purpose,
                            .dtype = transfer.dtype,
                            .elements = transfer.elements}));
  }
  const std::size_t most = std::max(planned.size(), recorded.size());
  for (std::size_t i = 0; i < most; ++i) {
    const std::string issued = i < recorded.size() ? text(recorded[i]) : "nothing more";
    const std::string expected = i < planned.size() ? planned[i] : "nothing more";
    if (issued != expected) {
      return fmt::format("collective {} of a step is {}, planned {}", i, issued, expected);
    }
  }
  return "";
}

}  // namespace dstrain::test
