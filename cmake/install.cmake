# cmake --install: the program, and for C++ users libmuster with find_package(muster).
install(TARGETS muster_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
