package airflow_merge_provider;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which starts no process for each file that it writes.
 *
 * <p>Without its native library, Hadoop sets the permissions of a file with the program {@code chmod}, and
 * reads links with {@code readlink}: a commit of Delta starts twenty processes.
 */
public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new WithoutProcesses());
  }

  /** Returns the permission of a new file in Hadoop, which has an umask of its own. */
  static FsPermission getDefaultPermission(Configuration configuration) {
    return FsPermission.getFileDefault().applyUMask(FsPermission.getUMask(configuration));
  }

  static void applyPermission(java.nio.file.Path file, FsPermission permission) throws IOException {
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permission.toString()));
  }

  /** The same without checksums. */
  static class WithoutProcesses extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      LocalFiles.applyPermission(pathToFile(path).toPath(), permission);
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      return Files.isSymbolicLink(pathToFile(path).toPath())
          ? super.getFileLinkStatus(path)
          : getFileStatus(path);
    }
  }
}
