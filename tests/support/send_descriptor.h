// Sends bytes and a descriptor over a unix socket, as a program may that is not muster.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace muster {

// The receiver may have gone, which is no error.
inline void send_descriptor(int to, void* bytes, size_t size, int fd) {
  iovec data{.iov_base = bytes, .iov_len = size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  *header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  (void)!::sendmsg(to, &message, MSG_NOSIGNAL);
}

}  // namespace muster
