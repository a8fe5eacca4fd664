/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * Every probe of the agent in one object; programs load one by one, so that one refusal costs one feature. */
#include "calls.h"
#include "host.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
char DIGEST[] SEC("ingero.digest") = SOURCE_DIGEST;
const volatile struct nccl_event record_layout = {}; /* brings both records into BTF, where a test compares them */
