# Whether the CUDA backend is built. AUTO: where nvcc and the toolkit's headers are found. Sanitizer
# and fuzz builds are for host code, and leave it out unless asked.
#
# Only the CUDA runtime is linked, statically; cuBLASLt (0.5 GB) is opened when the first product
# needs it (kernels/cuda/cublas_lt.h), NCCL when the first group does (engine/comm/nccl.h), and the
# driver by the runtime. So the program starts where none of them is installed. Only NCCL's header
# is needed here; it is separate from the toolkit, and without it ranks with a GPU each cannot
# communicate.
set(DSTRAIN_CUDA AUTO CACHE STRING "The CUDA backend: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE DSTRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT DSTRAIN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DSTRAIN_CUDA is \"${DSTRAIN_CUDA}\", expected AUTO, ON or OFF")
endif()

set(DSTRAIN_HAS_CUDA OFF)
set(DSTRAIN_HAS_NCCL OFF)
set(DSTRAIN_CUDA_SUMMARY "none")
set(DSTRAIN_NCCL_SUMMARY "none")
if(DSTRAIN_CUDA STREQUAL "ON"
   OR (DSTRAIN_CUDA STREQUAL "AUTO" AND NOT (DSTRAIN_SANITIZE OR DSTRAIN_TSAN OR DSTRAIN_FUZZ)))
  find_program(DSTRAIN_NVCC nvcc PATHS /usr/local/cuda/bin)
  find_path(DSTRAIN_CUBLASLT_INCLUDE cublasLt.h PATHS /usr/local/cuda/include)
  if(DSTRAIN_NVCC AND DSTRAIN_CUBLASLT_INCLUDE)
    set(DSTRAIN_HAS_CUDA ON)
  elseif(DSTRAIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DSTRAIN_CUDA is ON, but nvcc or cublasLt.h was not found: install CUDA's "
                        "toolkit, or name them with -DDSTRAIN_NVCC= and -DDSTRAIN_CUBLASLT_INCLUDE=")
  endif()
endif()
if(DSTRAIN_HAS_CUDA)
  # Machine code for Ampere and Hopper; PTX, which the driver compiles, for what comes after.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  # The oldest of them, which the program requires of GPUs; for "native" and the like, Ampere.
  set(DSTRAIN_OLDEST_CAPABILITY 80)
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "^[0-9]")
    string(REGEX MATCHALL "[0-9]+" oldest "${CMAKE_CUDA_ARCHITECTURES}")
    list(SORT oldest COMPARE NATURAL)
    list(GET oldest 0 DSTRAIN_OLDEST_CAPABILITY)
  endif()
  set(CMAKE_CUDA_COMPILER ${DSTRAIN_NVCC})
  if(DSTRAIN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${DSTRAIN_CCACHE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  find_package(CUDAToolkit 12 REQUIRED)
  set(DSTRAIN_CUDA_SUMMARY "${CUDAToolkit_VERSION}")
  find_path(DSTRAIN_NCCL_INCLUDE nccl.h PATHS ${CUDAToolkit_INCLUDE_DIRS})
  if(DSTRAIN_NCCL_INCLUDE)
    set(DSTRAIN_HAS_NCCL ON)
    file(STRINGS ${DSTRAIN_NCCL_INCLUDE}/nccl.h version REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
    list(TRANSFORM version REPLACE "^.* " "")
    list(JOIN version "." DSTRAIN_NCCL_SUMMARY)
  endif()
endif()
