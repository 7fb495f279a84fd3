"""Hadoop's local file system in the Java process of Spark, without a process for each file.

Hadoop sets the permissions of every file it creates by running `chmod`, unless it finds its native library, which
PySpark does not ship. A batch creates some twenty files in its checkpoint. Hadoop takes its file systems from a cache:
the one for local files is replaced there by a subclass, whose source is compiled by Janino, the compiler that Spark
itself uses for the code it generates. Nothing else of it differs: files, checksums and renames are Hadoop's own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL_FILE_SYSTEM", "set_permissions_without_a_process"]

PACKAGE, NAME = "headrace", "LocalFilesWithoutProcesses"
LOCAL_FILE_SYSTEM = f"{PACKAGE}.{NAME}"
SOURCE = f"""
package {PACKAGE};

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class {NAME} extends LocalFileSystem {{
  public {NAME}() {{
    super(new Raw());
  }}

  public static class Raw extends RawLocalFileSystem {{
    public void setPermission(Path path, FsPermission wanted) throws IOException {{
      String bits = wanted.getUserAction().SYMBOL + wanted.getGroupAction().SYMBOL + wanted.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(bits));
    }}
  }}
}}
"""


def set_permissions_without_a_process(spark: "SparkSession") -> None:
    """For all files that this Java process writes from now on; once for each process."""
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    file_systems, files = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI.create("file:///")
    current = file_systems.get(files, conf)
    if current.getClass().getName() == LOCAL_FILE_SYSTEM:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(current.getClass().getClassLoader())
    compiler.cook(SOURCE)
    own = jvm.org.apache.hadoop.conf.Configuration(conf)
    own.setClassLoader(compiler.getClassLoader())
    own.set("fs.file.impl", LOCAL_FILE_SYSTEM)
    current.close()  # that is what takes it out of the cache; whoever holds it can go on using it
    file_systems.get(files, own)
