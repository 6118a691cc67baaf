# What the .deb packages are called and depend on. Their files are in DebianFiles.cmake.
set(debian ${CPACK_SPARSED_SOURCE}/deploy/debian)
set(version ${CPACK_PACKAGE_VERSION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/DebianFiles.cmake)

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME sparsed)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_DESCRIPTION "Holds sparse matrices beside a GPU, or in memory, and multiplies with them on
request: SpMM, SDDMM and SpGEMM over gRPC. Runs as a service of systemd's, with
its settings in /etc/sparsed/sparsed.yaml.")
# Who makes the user that the service runs as.
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS "systemd-standalone-sysusers | systemd | adduser")
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS "sparsectl, libxgboost0")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "prometheus, nvidia-driver-libs")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  ${debian}/postinst ${debian}/prerm ${debian}/postrm ${debian}/conffiles)

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME sparsectl)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CLIENT_DESCRIPTION "Uploads sparse matrices to a sparsed server, multiplies with them, and shows
what it holds and how fast it is.")

set(CPACK_DEBIAN_C_INTERFACE_PACKAGE_NAME libsparsed-client1)
set(CPACK_DEBIAN_C_INTERFACE_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_C_INTERFACE_DESCRIPTION "For programs in C and every language that calls C: libsparsed_client, and
libsparsed_attached, which multiplies in the calling process where it can.")
# The kernels' library, which only one of the two libraries loads, is in there.
set(CPACK_DEBIAN_C_INTERFACE_PACKAGE_RECOMMENDS "sparsed (= ${version})")
set(CPACK_DEBIAN_C_INTERFACE_PACKAGE_CONTROL_EXTRA ${debian}/triggers)

set(CPACK_DEBIAN_MEASUREMENT_PACKAGE_NAME sparsed-bench)
set(CPACK_DEBIAN_MEASUREMENT_PACKAGE_SECTION science)
set(CPACK_DEBIAN_MEASUREMENT_DESCRIPTION "Tests of the GPU kernels, and their benchmark, for the machine that they run on.")
# The kernels' library is in there.
set(CPACK_DEBIAN_MEASUREMENT_PACKAGE_DEPENDS "sparsed (= ${version})")

set(CPACK_DEBIAN_DEVEL_PACKAGE_NAME libsparsed-dev)
set(CPACK_DEBIAN_DEVEL_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVEL_DESCRIPTION "Headers and pkg-config files for C, headers and the library for C++, the wire
contract as .proto files, and examples.")
# What sparsedConfig.cmake finds.
set(CPACK_DEBIAN_DEVEL_PACKAGE_DEPENDS
  "libsparsed-client1 (= ${version}), libabsl-dev, libfmt-dev, libgrpc++-dev, libgrpc-dev, libprotobuf-dev, protobuf-compiler")
