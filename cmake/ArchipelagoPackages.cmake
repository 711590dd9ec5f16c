# Every third-party package, found once. Debian's packages come first; libtorch is the pinned wheel.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(Catch2 2 REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(OpenSSL REQUIRED)
# httplib's macros decide the class layouts compiled into its .so: take the flags from pkg-config only.
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)

if(ARCHIPELAGO_WITH_TORCH)
  if(NOT ARCHIPELAGO_LIBTORCH)
    set(_default "$ENV{HOME}/.cache/archipelago/libtorch-2.15.0")
    if(EXISTS "${_default}/torch/lib/libtorch_cpu.so")
      set(ARCHIPELAGO_LIBTORCH "${_default}" CACHE PATH "" FORCE)
    endif()
  endif()
  if(NOT EXISTS "${ARCHIPELAGO_LIBTORCH}/torch/lib/libtorch_cpu.so")
    message(FATAL_ERROR "libtorch not found (ARCHIPELAGO_LIBTORCH='${ARCHIPELAGO_LIBTORCH}'). "
      "HINT: './dev build' fetches the pinned wheels; or pass -DARCHIPELAGO_WITH_TORCH=OFF.")
  endif()
  # The wheel's find_package(Torch) wants a CUDA toolkit, so its libraries are imported one by one.
  foreach(_lib torch_cpu c10)
    add_library(archipelago_${_lib} SHARED IMPORTED GLOBAL)
    set_target_properties(archipelago_${_lib} PROPERTIES
      IMPORTED_LOCATION "${ARCHIPELAGO_LIBTORCH}/torch/lib/lib${_lib}.so"
      IMPORTED_NO_SONAME FALSE)
  endforeach()
  add_library(archipelago_torch INTERFACE)
  add_library(archipelago::torch ALIAS archipelago_torch)
  target_include_directories(archipelago_torch SYSTEM INTERFACE
    "${ARCHIPELAGO_LIBTORCH}/torch/include"
    "${ARCHIPELAGO_LIBTORCH}/torch/include/torch/csrc/api/include")
  # at::parallel_for is a template: without OpenMP in our own files it runs on one thread. The runtime is
  # the wheel's own, so that there is one pool of threads in the process.
  target_compile_options(archipelago_torch INTERFACE -fopenmp)
  target_link_libraries(archipelago_torch INTERFACE archipelago_torch_cpu archipelago_c10
    "${ARCHIPELAGO_LIBTORCH}/torch/lib/libgomp.so.1")
  target_link_options(archipelago_torch INTERFACE "-Wl,-rpath-link,${ARCHIPELAGO_LIBTORCH}/torch/lib")
endif()
