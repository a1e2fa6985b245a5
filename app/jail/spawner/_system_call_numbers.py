"""The numbers of the system calls that the filters name, by machine."""

# What is younger than 2018 has the same number everywhere.
_EVERYWHERE = {
    "pidfd_getfd": 438, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "move_mount": 429,
    "open_tree": 428, "mount_setattr": 442, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "quotactl_fd": 443, "memfd_secret": 447, "clone3": 435, "open_tree_attr": 467,
}  # fmt: skip

_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "move_pages": 279,
    "migrate_pages": 256, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
    "bpf": 321, "add_key": 248, "request_key": 249, "keyctl": 250, "kexec_load": 246, "kexec_file_load": 320,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "userfaultfd": 323, "perf_event_open": 298,
    "fanotify_init": 300, "quotactl": 179, "swapon": 167, "swapoff": 168, "reboot": 169, "acct": 163,
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170,
    "setdomainname": 171, "name_to_handle_at": 303, "open_by_handle_at": 304, "syslog": 103, "iopl": 172,
    "ioperm": 173, "modify_ldt": 154, "clone": 56, "ioctl": 16, "personality": 135, "socket": 41, "socketpair": 53,
    "prlimit64": 302, "setpriority": 141, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142,
    "sched_setattr": 314, "ioprio_set": 251, "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65,
    "semctl": 66, "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240,
    "mq_unlink": 241, "mmap": 9, "memfd_create": 319,
}  # fmt: skip

_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "move_pages": 239,
    "migrate_pages": 238, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268,
    "bpf": 280, "add_key": 217, "request_key": 218, "keyctl": 219, "kexec_load": 104, "kexec_file_load": 294,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "userfaultfd": 282, "perf_event_open": 241,
    "fanotify_init": 262, "quotactl": 60, "swapon": 224, "swapoff": 225, "reboot": 142, "acct": 89,
    "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171, "sethostname": 161,
    "setdomainname": 162, "name_to_handle_at": 264, "open_by_handle_at": 265, "syslog": 116, "clone": 220, "ioctl": 29,
    "personality": 92, "socket": 198, "socketpair": 199, "prlimit64": 261, "setpriority": 140,
    "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274, "ioprio_set": 30,
    "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190, "semop": 193, "semctl": 191, "semtimedop": 192,
    "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180, "mq_unlink": 181, "mmap": 222,
    "memfd_create": 279,
}  # fmt: skip

NUMBERS = {"x86_64": _EVERYWHERE | _X86_64, "aarch64": _EVERYWHERE | _AARCH64}
