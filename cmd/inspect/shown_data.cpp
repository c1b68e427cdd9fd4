#include "cmd/inspect/shown_data.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "engine/config/config_error.h"
#include "engine/config/dataset_description.h"
#include "engine/train/run_data.h"

namespace dstrain {
namespace {

bool has_json_lines(const DataConfig& data) {
  const auto is = [](const DataSource& source) { return names_json_lines(source.prefix); };
  return std::any_of(data.train.begin(), data.train.end(), is) ||
         std::any_of(data.validation.begin(), data.validation.end(), is);
}

}  // namespace

ShownData::ShownData(const Config& config) : data_(config.data) {
  if (!has_json_lines(config.data)) return;
  std::string name = (std::filesystem::temp_directory_path() / "dstrain-data-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw ConfigError(name + ": no folder can be made there for the samples to look at");
  }
  folder_.path = name;
  data_ = with_prepared_samples(config.data, config.initial_weights, folder_.path,
                                [] { return false; });
}

ShownData::Folder::~Folder() {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove_all(path, ignored);
}

}  // namespace dstrain
