"""Holds librdkafka's mock cluster for other processes: prints its address, then obeys commands on its input.

Commands, each answered with `ok` or an error: `topic NAME PARTITIONS`, `delete NAME`, `trim NAME
OFFSET` (delete the messages of partition 0 before it), `down`, `up`, `fail CODE` (the next hundred requests to store
messages get this error; 0 for none). The cluster ends with the process.
"""

import ctypes
import sys
from pathlib import Path

import confluent_kafka

BROKERS = 2
PRODUCER = 0
# The number of the request that stores messages, in Kafka's protocol.
PRODUCE = 0


def library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka brought along, which has the mock cluster's functions."""
    folder = Path(confluent_kafka.__file__).parent
    [path] = folder.parent.glob("confluent_kafka.libs/librdkafka-*")
    loaded = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    loaded.rd_kafka_conf_new.restype = pointer
    loaded.rd_kafka_new.restype = pointer
    loaded.rd_kafka_new.argtypes = [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]
    loaded.rd_kafka_mock_cluster_new.restype = pointer
    loaded.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
    loaded.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    loaded.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    loaded.rd_kafka_mock_topic_create.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    loaded.rd_kafka_mock_topic_delete.argtypes = [pointer, ctypes.c_char_p]
    loaded.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [pointer, ctypes.c_int32]
    loaded.rd_kafka_mock_set_controller_id.argtypes = [pointer, ctypes.c_int32]
    loaded.rd_kafka_conf_set.argtypes = [pointer, *[ctypes.c_char_p] * 3, ctypes.c_size_t]
    loaded.rd_kafka_mock_partition_delete_records.argtypes = [
        pointer,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int64,
    ]
    loaded.rd_kafka_mock_clear_request_errors.argtypes = [pointer, ctypes.c_int16]
    loaded.rd_kafka_mock_push_request_errors_array.argtypes = [
        pointer,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    ]
    for name in ("down", "up"):
        function = getattr(loaded, f"rd_kafka_mock_broker_set_{name}")
        function.argtypes = [pointer, ctypes.c_int32]
    return loaded


def answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the cluster until the input ends."""
    kafka = library()
    error = ctypes.create_string_buffer(512)
    configuration = kafka.rd_kafka_conf_new()
    kafka.rd_kafka_conf_set(configuration, b"log_level", b"0", error, len(error))
    handle = kafka.rd_kafka_new(PRODUCER, configuration, error, len(error))
    assert handle, error.value
    cluster = kafka.rd_kafka_mock_cluster_new(handle, BROKERS)
    kafka.rd_kafka_mock_set_controller_id(cluster, 1)  # admin clients ask the controller
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    answer(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                failed = kafka.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
            case ["delete", name]:
                failed = kafka.rd_kafka_mock_topic_delete(cluster, name.encode())
            case ["trim", name, before]:
                failed = kafka.rd_kafka_mock_partition_delete_records(cluster, name.encode(), 0, int(before))
            case ["fail", code]:
                kafka.rd_kafka_mock_clear_request_errors(cluster, PRODUCE)
                if int(code):
                    errors = (ctypes.c_int * 100)(*[int(code)] * 100)
                    kafka.rd_kafka_mock_push_request_errors_array(cluster, PRODUCE, len(errors), errors)
                failed = 0
            case ["down" | "up" as state]:
                change = getattr(kafka, f"rd_kafka_mock_broker_set_{state}")
                failed = max(change(cluster, broker) for broker in range(1, BROKERS + 1))
            case _:
                failed = line
        answer("ok" if not failed else f"failed: {failed}")


if __name__ == "__main__":
    main()
