package airflow_merge_provider;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Writes the log of Delta tables on local disks so that of several writers of one version exactly one succeeds.
 *
 * <p>Delta's own log store looks whether there is a log entry and then moves its own to that place, which
 * overwrites an entry that another process has written in between: both report success, and one commit is
 * lost. A hard link is made by the kernel only if there is no file with its name.
 */
public class HardLinkLogStore extends HadoopFileSystemLogStore {
  private static final String SINGLE_WRITER = "airflow_merge_provider.allow_single_writer";

  public HardLinkLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    java.nio.file.Path file = java.nio.file.Path.of(path.toUri().getPath());
    String name = file.getFileName().toString();
    java.nio.file.Path part = file.resolveSibling("." + name + "." + UUID.randomUUID() + ".tmp");
    try {
      writeDurably(part, join(actions));
      LocalFiles.applyPermission(part, LocalFiles.getDefaultPermission(configuration));
      if (overwrite) {
        Files.move(part, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      } else {
        linkOnce(part, file, configuration.getBoolean(SINGLE_WRITER, false));
      }
      // Hadoop compares a file with a checksum that an earlier file of this name may have left.
      Files.deleteIfExists(file.resolveSibling("." + name + ".crc"));
    } finally {
      Files.deleteIfExists(part);
    }
  }

  /** Delta writes other files in this folder, such as checkpoints, in place. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return true;
  }

  /**
   * Gives a complete file the name of a log entry.
   *
   * <p>A failed attempt can have succeeded: if the answer of a file server is lost, the client asks again, and
   * its own link is in the way. It is the same file then.
   *
   * @throws FileAlreadyExistsException if there is a log entry with this name
   */
  static void linkOnce(java.nio.file.Path part, java.nio.file.Path file, boolean isSingleWriter)
      throws IOException {
    try {
      Files.createLink(file, part);
    } catch (FileAlreadyExistsException error) {
      if (!Files.isSameFile(part, file)) {
        throw error;
      }
    } catch (AccessDeniedException | NoSuchFileException error) {
      throw error;
    } catch (FileSystemException | UnsupportedOperationException error) {
      if (!isSingleWriter) {
        throw new IOException(
            file.getParent()
                + " is on a file system without hard links: two writers could overwrite each other's commits,"
                + " so nothing was committed",
            error);
      }
      if (Files.exists(file)) {
        throw new FileAlreadyExistsException(file.toString());
      }
      Files.move(part, file, StandardCopyOption.ATOMIC_MOVE);
    }
  }

  /** Writes a file so that its name never stands for no content, not even after a loss of power. */
  private static void writeDurably(java.nio.file.Path file, String text) throws IOException {
    ByteBuffer content = StandardCharsets.UTF_8.encode(text);
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      while (content.hasRemaining()) {
        channel.write(content);
      }
      channel.force(true);
    }
  }

  private static String join(Iterator<String> actions) {
    StringBuilder text = new StringBuilder();
    while (actions.hasNext()) {
      text.append(actions.next()).append('\n');
    }
    return text.toString();
  }
}
