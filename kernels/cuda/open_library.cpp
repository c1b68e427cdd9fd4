#include "kernels/cuda/open_library.h"

#include <climits>
#include <vector>

#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

namespace dstrain {
namespace {

/// The folder of this program, where scripts/bundle puts libraries into lib/.
std::string program_folder() {
  std::string path(PATH_MAX, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path.substr(0, path.rfind('/'));
}

}  // namespace

void* open_library(const std::string& name, std::string_view who) {
  const std::vector<std::string> places{program_folder() + "/lib/" + name, name,
                                        DSTRAIN_CUDA_LIBRARIES "/" + name};
  std::string why;
  for (const std::string& place : places) {
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    why += fmt::format("\n  {}", dlerror());
  }
  throw CudaError(fmt::format("{} want {}, which did not open:{}", who, name, why));
}

void fail_without_function(void* library, const char* name) {
  const link_map* opened = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &opened) == 0 && opened != nullptr;
  throw CudaError(
      fmt::format("{} has no function {}", known ? opened->l_name : "the library", name));
}

}  // namespace dstrain
